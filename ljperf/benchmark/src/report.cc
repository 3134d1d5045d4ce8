#include "benchmark/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/units.h"

namespace ljtrain::ljperf {
namespace {

using base::format_bytes;
using base::format_seconds;

constexpr std::size_t kLabelWidth = 15;
constexpr std::size_t kBarWidth = 40;
constexpr double kTera = 1e12;

std::string row(const std::string& label, const std::string& value) {
  return fmt::format("  {:<{}} {}\n", label, kLabelWidth, value);
}

std::string proxy_words(const cnp::Record& record) {
  return fmt::format("PROXY {} of {}: hidden size {}, {} of {} layers", record.proxy.scale,
                     record.model, record.proxy.hidden_size, record.proxy.layers,
                     record.proxy.of_layers);
}

// Figures of a run that did not complete must not pass for others.
std::string status_row(const cnp::Record& record) {
  if (record.status == cnp::Status::kCompleted) {
    return "";
  }
  std::size_t steps = record.runs.empty() ? 0 : record.runs.back().steps.size();
  return row("status", fmt::format("{} in run {} after step {}",
                                   record.status == cnp::Status::kFailed ? "FAILED" : "INTERRUPTED",
                                   record.runs.size(), steps));
}

std::string step_time_rows(const cnp::Record& record) {
  const cnp::StepTime& time = record.step_time_s;
  if (!time.median.has_value()) {
    return row("step time", "none measured");
  }
  std::string rows = row("step time", fmt::format("{}, median of {} steps (p5 {}, p95 {})",
                                                  format_seconds(*time.median), time.all.size(),
                                                  format_seconds(time.p05.value_or(0)),
                                                  format_seconds(time.p95.value_or(0))));
  rows += row("warm-up", fmt::format("{} steps left out; {}", record.warmup.steps,
                                     record.warmup.steady ? "steady after them"
                                                          : "NOT steady after them: add --steps"));
  if (time.ci95.has_value()) {
    double half = (time.ci95->high - time.ci95->low) / 2;
    rows += row("95 % interval",
                fmt::format("{} .. {} over {} runs (+- {:.1f} %)", format_seconds(time.ci95->low),
                            format_seconds(time.ci95->high), record.runs.size(),
                            100 * half / *time.median));
  } else {
    rows += row("95 % interval", "none from a single run; add --repeat 5");
  }
  return rows;
}

std::string speed_rows(const cnp::Record& record) {
  if (!record.tokens_per_s.has_value()) {
    return "";
  }
  std::string rows =
      row("throughput", fmt::format("{:.0f} tokens/s, {:.0f} a rank", *record.tokens_per_s,
                                    record.tokens_per_s_per_rank.value_or(0)));
  if (record.model_tflops_per_rank.has_value()) {
    rows += row("model FLOPs", fmt::format("{:.4g} TFLOP/s a rank, counted as {} does",
                                           *record.model_tflops_per_rank, record.flops_convention));
  }
  if (record.mfu.has_value()) {
    std::string hfu =
        record.hfu.has_value() ? fmt::format(" (HFU {:.1f} %)", 100 * *record.hfu) : "";
    rows += row("MFU",
                fmt::format("{:.1f} %{} of {:.4g} TFLOP/s: {}", 100 * *record.mfu, hfu,
                            record.peak_flops.value.value_or(0) / kTera, record.peak_flops.source));
  } else {
    rows += row("MFU", fmt::format("unknown ({})", record.peak_flops.source));
  }
  return rows;
}

std::string memory_rows(const cnp::Record& record) {
  if (!record.peak_memory_bytes.max.has_value()) {
    return "";
  }
  std::string resident =
      record.resident_peak_bytes.max.has_value()
          ? fmt::format(", {} resident",
                        format_bytes(static_cast<double>(*record.resident_peak_bytes.max)))
          : "";
  return row(
      "peak memory",
      fmt::format("{} of tensors a rank{}",
                  format_bytes(static_cast<double>(*record.peak_memory_bytes.max)), resident));
}

// Only where it was planned: the base recomputes all layers or none.
std::string recompute_row(const cnp::Record& record) {
  const cnp::Recompute& recompute = record.recompute;
  if (!record.components.recompute || !recompute.predicted_peak_bytes.has_value()) {
    return "";
  }
  std::string text =
      fmt::format("{} of {} layers; peak predicted {}", recompute.layers, recompute.of,
                  format_bytes(static_cast<double>(*recompute.predicted_peak_bytes)));
  if (recompute.measured_peak_bytes.has_value()) {
    text += fmt::format(", measured {}",
                        format_bytes(static_cast<double>(*recompute.measured_peak_bytes)));
  }
  return row("recompute", text);
}

// Only where it is not the base's: glibc's malloc and no huge pages asked for.
std::string allocator_row(const cnp::Record& record) {
  const std::optional<cnp::Allocator>& allocator = record.configuration.allocator;
  if (!allocator.has_value() || (!allocator->library.has_value() && !allocator->huge_pages)) {
    return "";
  }
  std::string pages =
      allocator->huge_pages
          ? fmt::format(", {} in huge pages",
                        format_bytes(static_cast<double>(record.huge_page_bytes.max.value_or(0))))
          : "";
  return row("allocator", allocator->name + pages);
}

std::string loss_row(const cnp::Record& record) {
  if (record.loss.empty()) {
    return "";
  }
  return row("loss", fmt::format("{:.4f} -> {:.4f} in {} steps", record.loss.front(),
                                 record.loss.back(), record.loss.size()));
}

std::string breakdown_rows(const cnp::Record& record) {
  if (!record.breakdown_s.has_value()) {
    return record.breakdown_note.empty()
               ? ""
               : row("breakdown", fmt::format("none ({})", record.breakdown_note));
  }
  const cnp::Breakdown& parts = *record.breakdown_s;
  const std::array<std::pair<const char*, double>, 6> phases{
      {{"data", parts.data},
       {"forward", parts.forward},
       {"backward", parts.backward},
       {"communication", parts.communication_exposed},
       {"optimizer", parts.optimizer},
       {"other", parts.other}}};
  double sum = 0;
  for (const auto& [name, seconds] : phases) {
    sum += seconds;
  }
  std::string rows = "\n  where the step goes\n";
  for (const auto& [name, seconds] : phases) {
    double share = sum > 0 ? seconds / sum : 0;
    auto bar = static_cast<std::size_t>(std::lround(share * kBarWidth));
    rows += fmt::format("    {:<13} {:>9} {:>6.1f} %{}{}\n", name, format_seconds(seconds),
                        100 * share, bar > 0 ? "  " : "", std::string(bar, '#'));
  }
  return rows + fmt::format("    ({})\n", record.breakdown_note);
}

std::string overhead_row(const cnp::Record& record) {
  if (!record.instrumentation_overhead.has_value()) {
    return "";
  }
  const cnp::Overhead& overhead = *record.instrumentation_overhead;
  std::string interval = overhead.ci95.has_value() ? fmt::format(" (95 %: {:+.2f} .. {:+.2f} %)",
                                                                 100 * (overhead.ci95->low - 1),
                                                                 100 * (overhead.ci95->high - 1))
                                                   : "";
  return row("measuring costs", fmt::format("{:+.2f} % of the step{}, {} blocks on and off",
                                            100 * (overhead.ratio - 1), interval, overhead.blocks));
}

}  // namespace

std::string first_line(const cnp::Record& record) {
  std::string what = fmt::format("{}/{}", record.engine, record.model);
  if (record.proxy.is_proxy) {
    return fmt::format("{}: {}", what, proxy_words(record));
  }
  return fmt::format("{}: full size, {} parameters, {} layers", what,
                     base::format_count(static_cast<double>(record.parameters.value_or(0))),
                     record.proxy.layers);
}

std::string last_line(const cnp::Record& record) {
  if (!record.step_time_s.median.has_value()) {
    return fmt::format("Nothing was measured of {}.",
                       record.proxy.is_proxy ? "the " + proxy_words(record) : record.model);
  }
  if (record.proxy.is_proxy) {
    return fmt::format("Not the full model: {}.", proxy_words(record));
  }
  return fmt::format("These figures are of the full {}.", record.model);
}

std::string configuration_line(const cnp::Record& record) {
  std::string sharding = record.zero_stage.has_value()
                             ? fmt::format("ZeRO-{}", *record.zero_stage)
                             : (record.engine == "fsdp" ? "FSDP2" : "DDP");
  std::string each = record.device != "cpu" ? "1 GPU"
                     : record.threads_per_rank == 1
                         ? "1 thread"
                         : fmt::format("{} threads", record.threads_per_rank);
  std::string batch = record.gradient_accumulation > 1
                          ? fmt::format("{} x {}", record.micro_batch, record.gradient_accumulation)
                          : std::to_string(record.micro_batch);
  return fmt::format("{}, {}, {} rank{} x {}, sequence {}, micro-batch {}", sharding,
                     record.precision, record.ranks, record.ranks == 1 ? "" : "s", each,
                     record.sequence_length, batch);
}

std::string result_table(const cnp::Record& record) {
  return status_row(record) + step_time_rows(record) + speed_rows(record) + memory_rows(record) +
         recompute_row(record) + allocator_row(record) + loss_row(record) + overhead_row(record) +
         breakdown_rows(record);
}

}  // namespace ljtrain::ljperf
