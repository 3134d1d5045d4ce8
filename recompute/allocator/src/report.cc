#include "allocator/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace ljtrain::recompute {
namespace {

std::string size(std::int64_t bytes) { return base::format_bytes(static_cast<double>(bytes)); }

// What people try first. Garbage collection needs a limit to be a share of.
std::vector<std::string> usual_settings(const AllocatorSettings& own, bool limited) {
  std::vector<std::string> settings;
  if (!own.text.empty()) {
    settings.emplace_back("");
  }
  settings.emplace_back("expandable_segments:True");
  settings.emplace_back("max_split_size_mb:128");
  settings.emplace_back("roundup_power2_divisions:8");
  if (limited) {
    settings.emplace_back("garbage_collection_threshold:0.8,per_process_memory_fraction:0.99");
  }
  std::erase(settings, own.text.empty() ? "-" : own.text);
  return settings;
}

}  // namespace

std::optional<double> MemoryReport::reserved_error() const {
  auto recorded = static_cast<double>(snapshot.recorded.peak_reserved);
  if (recorded == 0 || as_recorded.replay.failure) {
    return std::nullopt;
  }
  return static_cast<double>(as_recorded.replay.stats.peak_reserved) / recorded - 1;
}

MemoryReport analyse(MemorySnapshot snapshot, std::string file, const AnalysisOptions& options) {
  MemoryReport report;
  report.file = std::move(file);
  report.snapshot = std::move(snapshot);
  const RecordedMemory& recorded = report.snapshot.recorded;
  report.limit = options.limit;
  if (!report.limit && !recorded.failures.empty()) {
    const RecordedFailure& first = recorded.failures.front();
    report.limit = first.reserved + std::min(first.device_free, kLargestRequest);
    report.limit_from_trace = true;
  }
  DeviceMemory device{.total = report.limit.value_or(kUnlimited)};
  const Trace& trace = report.snapshot.trace;
  auto simulate = [&](const std::string& text, const std::string& where, int samples) {
    AllocatorSettings settings = parse_allocator_settings(text, where);
    Replay result = replay(trace, settings, device, samples);
    return SimulatedSetting{std::move(settings), std::move(result)};
  };
  std::vector<std::string> settings = options.settings;
  report.as_recorded = simulate(report.snapshot.settings, "allocator_settings", options.samples);
  if (settings.empty()) {
    settings = usual_settings(report.as_recorded.settings, report.limit.has_value());
  }
  for (const std::string& text : settings) {
    report.others.push_back(simulate(text, "--settings", 0));
  }
  report.owners = owners_at(trace, recorded.peak_live_event);
  return report;
}

std::string cause_of(const RecordedFailure& failure) {
  std::int64_t idle = failure.reserved - failure.live;
  if (idle >= failure.requested) {
    return fmt::format("fragmentation: {} were reserved and in no use, but in no piece that fits",
                       size(idle));
  }
  if (idle + failure.device_free >= failure.requested) {
    return fmt::format("partly fragmentation: {} in no use + {} on the device would do", size(idle),
                       size(failure.device_free));
  }
  return fmt::format("too much in use: {} in no use and {} on the device do not suffice",
                     size(std::max<std::int64_t>(idle, 0)), size(failure.device_free));
}

}  // namespace ljtrain::recompute
