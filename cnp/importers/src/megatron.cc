// Logs of Megatron-LM and of what is built on it; see importers/import.h for the lines.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats.h"
#include "log_text.h"

namespace ljtrain::cnp {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kMillisecondsPerSecond = 1000;

// The sizes of batch that the steps had.
struct Batches {
  std::optional<std::int64_t> size;
  bool varies = false;
};

// "  seq_length ...................................... 4096" -> name and value.
bool read_argument(std::string_view line, std::string_view& name, std::string_view& value) {
  std::size_t dots = line.find(" ....");
  if (dots == std::string_view::npos) return false;
  std::size_t after = line.find_first_not_of('.', dots + 1);
  if (after == std::string_view::npos || line[after] != ' ') return false;
  name = trimmed(line.substr(0, dots));
  // Behind a launcher's mark: "[default0]:  seq_length".
  if (std::size_t blank = name.rfind(' '); blank != std::string_view::npos) {
    name.remove_prefix(blank + 1);
  }
  value = trimmed(line.substr(after));
  return !name.empty() && !value.empty();
}

void read_argument_line(std::string_view line, LoggedRun& run) {
  std::string_view name;
  std::string_view value;
  if (!read_argument(line, name, value)) return;
  std::optional<std::int64_t> count = as_count(leading_number(value), 1);
  if (name == "seq_length" && count) run.facts.sequence_length = count;
  if (name == "micro_batch_size" && count) run.facts.micro_batch = count;
  if (name == "world_size" && count) run.facts.ranks = count;
  if (name == "num_layers" && count) run.layers = count;
  if (name == "hidden_size" && count) run.hidden_size = count;
  if (name == "seed") run.seed = as_count(leading_number(value));
  if (name == "bf16" && value == "True") run.facts.precision = "bf16";
  if (name == "fp16" && value == "True") run.facts.precision = "fp16";
  if (name == "data_parallel_size" && count) run.details["data_parallel_size"] = *count;
}

// "[Rank 0] (after 10 iterations) memory (MB) | allocated: 1464.3 | max allocated: 1464.3 | ..."
void read_memory_line(std::string_view line, LoggedRun& run) {
  if (line.find("memory (MB)") == std::string_view::npos) return;
  std::optional<double> peak = number_after(line, "max allocated:");
  std::optional<std::int64_t> bytes =
      peak ? as_count(std::trunc(*peak * kMiB)) : std::optional<std::int64_t>();
  if (bytes) {
    run.peak_memory_bytes =
        std::max(run.peak_memory_bytes.value_or(0), static_cast<std::uint64_t>(*bytes));
  }
}

std::optional<double> seconds_of(std::string_view line) {
  std::optional<double> time = number_after(line, "elapsed time per iteration (ms):");
  if (time) {
    *time /= kMillisecondsPerSecond;
  } else {
    time = number_after(line, "elapsed time per iteration (s):");  // 2021 to 2022, BigScience
  }
  return time && std::isfinite(*time) && *time >= 0 ? time : std::nullopt;
}

bool read_step_line(std::string_view line, LoggedRun& run, Batches& batches,
                    std::size_t& repeated) {
  if (line.find("elapsed time per iteration") == std::string_view::npos) return false;
  std::optional<std::int64_t> step = as_count(number_after(line, "iteration "), 1);
  std::optional<double> seconds = seconds_of(line);
  if (!step || !seconds) return false;
  LoggedStep entry;
  entry.step = *step - 1;
  entry.seconds = *seconds;
  entry.loss = number_after(line, "lm loss:");
  std::optional<double> tflops = number_after(line, "throughput per GPU (TFLOP/s/GPU):");
  if (tflops && std::isfinite(*tflops) && *tflops >= 0) entry.tflops_per_rank = tflops;
  if (!add_step(run, entry)) {
    ++repeated;
    return true;
  }
  if (auto batch = as_count(number_after(line, "global batch size:"), 1)) {
    batches.varies = batches.varies || (batches.size && *batches.size != *batch);
    batches.size = batch;
  }
  return true;
}

void derive_tokens(const Batches& batches, LoggedRun& run) {
  if (batches.varies) {
    run.notes.emplace_back("the batch grew during the training, so tokens a step are unknown");
    return;
  }
  run.global_batch = batches.size;
  if (batches.size && run.facts.sequence_length) {
    run.global_tokens_per_step = as_count(static_cast<double>(*batches.size) *
                                          static_cast<double>(*run.facts.sequence_length));
  }
  const base::OrderedJson* replicas = nullptr;
  if (run.details.is_object() && run.details.contains("data_parallel_size")) {
    replicas = &run.details["data_parallel_size"];
  }
  if (replicas == nullptr || !batches.size || !run.facts.micro_batch) return;
  std::int64_t together = replicas->get<std::int64_t>() * *run.facts.micro_batch;
  if (together > 0 && *batches.size % together == 0) {
    run.facts.gradient_accumulation = *batches.size / together;
  }
}

}  // namespace

LoggedRun read_megatron(std::string_view text, const StatedFacts& stated, const std::string& file) {
  LoggedRun run;
  run.facts.engine = "megatron";
  run.flops_convention = "megatron";
  Batches batches;
  std::size_t repeated = 0;
  for_each_line(text, [&](std::string_view line) {
    if (read_step_line(line, run, batches, repeated)) return;
    read_argument_line(line, run);
    read_memory_line(line, run);
  });
  add_stated_facts(stated, file, run);
  derive_tokens(batches, run);
  run.notes.emplace_back("times and losses are means over the iterations since the line before");
  if (run.peak_memory_bytes) {
    run.notes.emplace_back("memory is the most among the ranks that reported it (max allocated)");
  }
  if (repeated > 0) {
    run.notes.push_back(fmt::format(
        "{} lines of iterations that were there already (a restart) were passed over", repeated));
  }
  return run;
}

}  // namespace ljtrain::cnp
