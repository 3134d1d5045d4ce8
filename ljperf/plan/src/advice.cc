#include <algorithm>

#include "answer.h"
#include "base/errors.h"
#include "base/units.h"

namespace ljtrain::ljperf {
namespace {

using recompute::Component;
using recompute::Engine;

// Shares of the peak from which a part is worth a word.
constexpr double kLargeShare = 0.25;
constexpr double kCloseToLimit = 0.97;
constexpr double kBf16 = 2;

double share(const recompute::Prediction& prediction, Component component) {
  return prediction.peak_components[static_cast<std::size_t>(component)] / prediction.peak_bytes;
}

void warn_of_zero3(const Subject& subject, const Answer& answer,
                   std::vector<std::string>* warnings) {
  const recompute::EngineKnobs& knobs = subject.setup.knobs;
  double prefetch = kBf16 * knobs.prefetch_bucket_size;
  double live = kBf16 * std::min(knobs.max_live_parameters, answer.parameters);
  if (prefetch > 0.02 * subject.limit.bytes) {
    warnings->push_back(fmt::format(
        "stage3_prefetch_bucket_size lets {} of parameters be gathered ahead of use; \"auto\" is "
        "less",
        base::format_bytes(prefetch)));
  }
  if (live > 0.1 * subject.limit.bytes) {
    warnings->push_back(fmt::format(
        "stage3_max_live_parameters lets {} of gathered parameters stay; lower it where memory is "
        "short",
        base::format_bytes(live)));
  }
  for (const Alternative& alternative : answer.alternatives) {
    if (alternative.change == "--zero 2" && alternative.fits && answer.plan.fits &&
        alternative.peak_bytes < answer.plan.prediction.peak_bytes) {
      warnings->emplace_back(
          "ZeRO-3 peaks above ZeRO-2 here: what it gathers is more than what it shards");
    }
  }
}

// Names the largest component in words.
std::string largest_part(const recompute::Prediction& prediction) {
  auto largest = std::ranges::max_element(prediction.peak_components);
  auto component = static_cast<Component>(largest - prediction.peak_components.begin());
  std::string name(recompute::component_name(component));
  std::ranges::replace(name, '_', ' ');
  return fmt::format("{} with {}", name, base::format_bytes(*largest));
}

}  // namespace

std::vector<std::string> find_warnings(const Subject& subject, const Answer& answer) {
  std::vector<std::string> warnings = subject.notes;
  const recompute::Prediction& prediction = answer.plan.prediction;
  if (subject.setup.engine == Engine::kZero3) {
    warn_of_zero3(subject, answer, &warnings);
  }
  if (share(prediction, Component::kLogits) > kLargeShare && !subject.setup.fused_loss) {
    warnings.push_back(fmt::format(
        "logits of {} tokens and their gradients are {:.0f}% of the peak: a fused head and loss "
        "(--fused-loss) does without them",
        subject.config.vocab_size, 100 * share(prediction, Component::kLogits)));
  }
  if (answer.plan.fits && prediction.peak_bytes > kCloseToLimit * subject.limit.bytes) {
    warnings.push_back(fmt::format(
        "the plan leaves {} of the limit; where sequence lengths vary, --seq must be the longest "
        "that comes",
        base::format_bytes(subject.limit.bytes - prediction.peak_bytes)));
  }
  if (answer.plan.gap() > 0.001) {
    warnings.push_back(fmt::format(
        "the search gave up exactness: the plan may be up to {:.1f}% slower than the best one",
        100 * answer.plan.gap()));
  }
  return warnings;
}

std::string describe_shortfall(const Subject& subject, const Answer& answer) {
  if (answer.plan.fits) {
    return "";
  }
  const recompute::Prediction& prediction = answer.plan.prediction;
  std::string text = fmt::format(
      "{} does not fit: at least {} a rank of {} ({}); the largest part is {}", subject.name,
      base::format_bytes(prediction.peak_bytes), base::format_bytes(subject.limit.bytes),
      subject.limit.source, largest_part(prediction));
  std::vector<std::string> ways;
  for (const Alternative& alternative : answer.alternatives) {
    if (alternative.fits && std::ranges::find(ways, alternative.change) == ways.end()) {
      ways.push_back(alternative.change);
    }
  }
  constexpr std::size_t kMostNamed = 4;
  ways.resize(std::min(ways.size(), kMostNamed));
  return text + (ways.empty() ? "; no single change of those tried makes it fit"
                              : fmt::format("; it fits with {}", fmt::join(ways, ", or ")));
}

}  // namespace ljtrain::ljperf
