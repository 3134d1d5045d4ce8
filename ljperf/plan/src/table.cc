#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "answer.h"
#include "base/errors.h"
#include "base/units.h"

namespace ljtrain::ljperf {
namespace {

using recompute::LayerPolicy;

constexpr std::size_t kWidth = 80;
constexpr double kGiB = 1024.0 * 1024 * 1024;

// Breaks at blanks so that no line is longer than kWidth; lines after the first are indented.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string result;
  std::size_t column = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t end = std::min(text.find(' ', at), text.size());
    std::size_t length = end - at;
    if (column > indent && column + 1 + length > kWidth) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > 0) {
      result += ' ';
      ++column;
    }
    result += text.substr(at, length);
    column += length;
    at = end + 1;
  }
  return result + "\n";
}

std::string gib(double bytes) { return fmt::format("{:.2f}", bytes / kGiB); }

std::string words(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', ' ');
  return text;
}

std::string place_words(const recompute::Prediction& prediction, std::int64_t layers) {
  std::string place = prediction.peak_layer < 0 ? "the embedding"
                      : prediction.peak_layer >= static_cast<int>(layers)
                          ? "head and loss"
                          : fmt::format("layer {}", prediction.peak_layer);
  switch (prediction.peak_phase) {
    case recompute::Phase::kForward:
      return "the forward of " + place;
    case recompute::Phase::kBackward:
      return "the backward of " + place;
    case recompute::Phase::kReduction:
      return "the reduction of gradients";
    case recompute::Phase::kOptimizer:
      return "the optimizer's step";
  }
  return place;
}

std::string breakdown_table(const Subject& subject, const Answer& answer) {
  constexpr double kBarWidth = 40;
  const recompute::Prediction& prediction = answer.plan.prediction;
  std::string text = fmt::format("Peak in {}, GiB a rank:\n",
                                 place_words(prediction, subject.config.layer_count()));
  double largest = *std::ranges::max_element(prediction.peak_components);
  for (std::size_t i = 0; i < prediction.peak_components.size(); ++i) {
    double bytes = prediction.peak_components[i];
    if (bytes < 0.005 * kGiB && bytes < 0.001 * prediction.peak_bytes) {
      continue;
    }
    auto bar = static_cast<std::size_t>(std::lround(kBarWidth * bytes / largest));
    text += fmt::format("  {:<16} {:>10}  {}\n",
                        words(component_name(static_cast<recompute::Component>(i))), gib(bytes),
                        std::string(bar, '#'));
  }
  return text + fmt::format("  {:<16} {:>10}  of {} ({})\n", "total", gib(prediction.peak_bytes),
                            gib(subject.limit.bytes), subject.limit.source);
}

std::string step_words(const Subject& subject, const Answer& answer, double seconds) {
  if (subject.device_known) {
    return base::format_seconds(seconds);
  }
  return fmt::format("{:.2f}x", seconds / answer.plan.step_seconds);
}

std::string alternatives_table(const Subject& subject, const Answer& answer) {
  std::string text = fmt::format("{:<42} {:>9} {:>12} {:>10}\n", "What else, planned anew",
                                 "peak GiB", "recomputed", "step");
  for (const Alternative& alternative : answer.alternatives) {
    text += fmt::format(
        "  {:<40} {:>9} {:>12} {:>10}\n", alternative.change, gib(alternative.peak_bytes),
        fmt::format("{} of {}", alternative.recompute_layers, subject.config.layer_count()),
        alternative.fits ? step_words(subject, answer, alternative.step_seconds) : "too large");
  }
  return text;
}

std::string summary(const Subject& subject, const Answer& answer) {
  const recompute::Plan& plan = answer.plan;
  if (!plan.fits) {
    return wrapped(answer.shortfall + ".", 2);
  }
  std::string text = plan.recomputed_layers == 0
                         ? "Recompute nothing: all activations fit"
                         : fmt::format("Recompute {} of {} layers ({})", plan.recomputed_layers,
                                       subject.config.layer_count(), describe_policy(plan.policy));
  if (!plan.policy.kept_operators.empty()) {
    text += fmt::format("; selected layers keep what these return: {}",
                        fmt::join(plan.policy.kept_operators, ", "));
  }
  text = wrapped(text + ".", 2);
  std::string time = subject.device_known
                         ? fmt::format("A step computes for about {}, of it {:.1f}% recomputing",
                                       base::format_seconds(plan.step_seconds),
                                       100 * plan.recompute_seconds / plan.step_seconds)
                         : fmt::format("Recomputing takes about {:.1f}% of the step's computing",
                                       100 * plan.recompute_seconds / plan.step_seconds);
  return text +
         wrapped(time + fmt::format(" ({}; collectives not counted).", subject.time.describe()), 2);
}

std::string largest_sizes(const Subject& subject, const Answer& answer) {
  if (answer.max_micro_batch == 0) {
    return "";
  }
  return wrapped(
      fmt::format("Largest micro-batch at {} tokens: {}. Longest sequence at micro-batch {}: {} "
                  "tokens. Both with as much recomputed as it takes.",
                  subject.setup.seq, answer.max_micro_batch, subject.setup.micro_batch,
                  answer.max_seq),
      2);
}

std::string indented(const std::string& text) {
  std::string result = "  ";
  for (char c : text) {
    result += c;
    if (c == '\n') {
      result += "  ";
    }
  }
  while (result.ends_with(' ') || result.ends_with('\n')) {
    result.pop_back();
  }
  return result + "\n";
}

std::string settings_text(const Subject& subject, const Answer& answer) {
  SettingsToPaste settings = settings_to_paste(subject, answer.plan);
  std::string text = "To paste:\n" + indented(training_arguments_text(settings));
  if (!settings.deepspeed.is_null()) {
    text += "\ndeepspeed.json:\n" + indented(settings.deepspeed.dump(2));
  }
  if (!settings.python.empty()) {
    text +=
        "\nBefore Trainer(model=model, ...), to choose the layers:\n" + indented(settings.python);
  }
  return text;
}

}  // namespace

std::string describe_policy(const recompute::Policy& policy) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < policy.layers.size();) {
    std::size_t end = i;
    while (end < policy.layers.size() && policy.layers[end] == policy.layers[i]) {
      ++end;
    }
    std::string range = end - i == 1 ? std::to_string(i) : fmt::format("{}-{}", i, end - 1);
    runs.push_back(fmt::format("{} {}", range, layer_policy_name(policy.layers[i])));
    i = end;
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

std::string describe_setup(const Subject& subject) {
  const recompute::TrainingSetup& setup = subject.setup;
  std::string text =
      fmt::format("{} x {}, {}", setup.ranks, subject.device, recompute::engine_name(setup.engine));
  text += subject.lora > 0 ? fmt::format(", LoRA rank {}", subject.lora) : "";
  text += setup.compiled ? ", torch.compile" : "";
  text += setup.knobs.offload_optimizer ? ", optimizer on the host" : "";
  text += setup.knobs.offload_param ? ", parameters on the host" : "";
  return text + fmt::format("; sequences of {} tokens, micro-batch {}{}", setup.seq,
                            setup.micro_batch,
                            setup.gradient_accumulation > 1
                                ? fmt::format(", accumulated {} times", setup.gradient_accumulation)
                                : "");
}

std::string to_text(const Subject& subject, const Answer& answer) {
  std::string text = wrapped(fmt::format("{} ({} parameters, {} layers) on {}", subject.name,
                                         base::format_count(answer.parameters),
                                         subject.config.layer_count(), describe_setup(subject)),
                             2);
  text += "\n" + summary(subject, answer);
  text += "\n" + breakdown_table(subject, answer);
  if (!answer.alternatives.empty()) {
    text += "\n" + alternatives_table(subject, answer);
  }
  text += largest_sizes(subject, answer);
  for (const std::string& warning : answer.warnings) {
    text += wrapped("note: " + warning, 6);
  }
  if (answer.plan.fits) {
    text += "\n" + settings_text(subject, answer);
  }
  return text;
}

}  // namespace ljtrain::ljperf
