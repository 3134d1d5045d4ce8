// Logs of torchtitan; see importers/import.h for the lines and their source.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats.h"
#include "log_text.h"

namespace ljtrain::cnp {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kPercent = 100;

// "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1":
// experts share the ranks of the others, so ep and etp are no factors.
std::optional<std::int64_t> ranks_of_mesh(std::string_view line) {
  if (line.find("device mesh with parallelism:") == std::string_view::npos) return std::nullopt;
  double ranks = 1;
  for (const char* name : {"pp=", "dp_replicate=", "dp_shard=", "cp=", "tp="}) {
    std::optional<std::int64_t> degree = as_count(number_after(line, name, false), 1);
    if (!degree) return std::nullopt;
    ranks *= static_cast<double>(*degree);
  }
  return as_count(ranks, 1);
}

// "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]": torchtitan before 2025-11.
std::optional<std::int64_t> ranks_of_old_mesh(std::string_view line) {
  if (line.find("-D device mesh with [") == std::string_view::npos) return std::nullopt;
  std::string_view degrees = between(line, "], [", "]");
  double ranks = 1;
  while (!degrees.empty()) {
    std::optional<std::int64_t> degree = as_count(leading_number(degrees), 1);
    if (!degree) return std::nullopt;
    ranks *= static_cast<double>(*degree);
    std::size_t comma = degrees.find(',');
    degrees.remove_prefix(comma == std::string_view::npos ? degrees.size() : comma + 1);
  }
  return as_count(ranks, 1);
}

template <typename T>
void keep(std::optional<T>& fact, const std::optional<T>& found) {
  if (found) fact = found;
}

void read_set_up_line(std::string_view line, LoggedRun& run) {
  keep(run.facts.ranks, ranks_of_mesh(line));
  keep(run.facts.ranks, ranks_of_old_mesh(line));
  if (line.find("local batch size") != std::string_view::npos) {
    keep(run.facts.micro_batch, as_count(number_after(line, "local batch size"), 1));
    keep(run.global_batch, as_count(number_after(line, "global batch size"), 1));
    keep(run.facts.sequence_length, as_count(number_after(line, "sequence length"), 1));
    keep(run.facts.gradient_accumulation,
         as_count(number_after(line, "gradient accumulation steps"), 1));
  }
  // "Model llama3 8B size: 8,030,261,248 total parameters".
  if (std::string_view name = between(line, "Model ", " size: "); !name.empty()) {
    std::optional<double> count = number_after(line, "size:", true);
    if (count && line.find("total parameters") != std::string_view::npos) {
      run.facts.model = std::string(trimmed(name));
      keep(run.parameters, as_count(count));
    }
  }
  // "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory".
  if (std::string_view rest = between(line, " capacity: ", "GiB memory"); !rest.empty()) {
    std::size_t with = rest.rfind(" with ");
    std::optional<double> size =
        with == std::string_view::npos ? std::nullopt : leading_number(rest.substr(with + 6));
    if (size && *size > 0) {
      run.gpu = std::string(trimmed(rest.substr(0, with)));
      if (auto bytes = as_count(std::trunc(*size * kGiB))) {
        run.gpu_memory_bytes = static_cast<std::uint64_t>(*bytes);
      }
      run.facts.device = line.find("XPU capacity") != std::string_view::npos ? "xpu" : "cuda";
    }
  }
  if (std::optional<double> peak = number_after(line, "Peak FLOPS used for computing MFU:")) {
    if (*peak > 0 && std::isfinite(*peak)) run.peak_flops = peak;
  }
}

std::optional<double> at_least_zero(const std::optional<double>& value) {
  return value && std::isfinite(*value) && *value >= 0 ? value : std::nullopt;
}

// Returns whether the line is one of a step.
bool read_step_line(std::string_view line, LoggedRun& run, std::size_t& repeated) {
  if (line.find("validate step:") != std::string_view::npos) return false;
  std::optional<std::int64_t> step = as_count(number_after(line, "step:"), 1);
  std::optional<double> rate = at_least_zero(number_after(line, "tps:", true));
  std::optional<double> loss = number_after(line, "loss:");
  if (!step || !rate || !loss) return false;
  LoggedStep entry;
  entry.step = *step - 1;
  entry.loss = loss;
  entry.tokens_per_s_per_rank = rate;
  entry.tflops_per_rank = at_least_zero(number_after(line, "tflops:", true));
  if (std::optional<double> mfu = at_least_zero(number_after(line, "mfu:"))) {
    entry.mfu = *mfu / kPercent;
  }
  if (std::optional<double> memory = number_after(line, "memory:")) {
    std::optional<std::int64_t> bytes = as_count(std::trunc(*memory * kGiB));
    if (bytes) {
      run.peak_memory_bytes =
          std::max(run.peak_memory_bytes.value_or(0), static_cast<std::uint64_t>(*bytes));
    }
  }
  if (!add_step(run, entry)) ++repeated;
  return true;
}

// tps = tokens of a step / ranks / seconds, so seconds follow where the rest is known.
void derive_seconds(LoggedRun& run) {
  if (run.global_batch && run.facts.sequence_length) {
    run.global_tokens_per_step = as_count(static_cast<double>(*run.global_batch) *
                                          static_cast<double>(*run.facts.sequence_length));
  }
  if (!run.global_tokens_per_step || !run.facts.ranks) {
    run.notes.emplace_back(
        "the log does not tell the ranks and the tokens of a step, so times a step are unknown");
    return;
  }
  for (LoggedStep& step : run.steps) {
    if (step.tokens_per_s_per_rank.value_or(0) > 0) {
      step.seconds = static_cast<double>(*run.global_tokens_per_step) /
                     static_cast<double>(*run.facts.ranks) / *step.tokens_per_s_per_rank;
    }
  }
  run.notes.emplace_back(
      "times a step are tokens of a step / ranks / tps, where tps is the mean since the line "
      "before");
}

}  // namespace

LoggedRun read_torchtitan(std::string_view text, const StatedFacts& stated,
                          const std::string& file) {
  LoggedRun run;
  run.facts.engine = "torchtitan";
  run.flops_convention = "torchtitan";
  std::size_t repeated = 0;
  for_each_line(text, [&](std::string_view line) {
    if (!read_step_line(line, run, repeated)) read_set_up_line(line, run);
  });
  add_stated_facts(stated, file, run);
  if (!run.steps.empty()) derive_seconds(run);
  run.notes.emplace_back("memory is the most that one rank's allocator reserved");
  if (repeated > 0) {
    run.notes.push_back(fmt::format(
        "{} lines of steps that were there already (other ranks, or a restart) were passed over",
        repeated));
  }
  return run;
}

}  // namespace ljtrain::cnp
