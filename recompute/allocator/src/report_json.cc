#include <algorithm>

#include "allocator/report.h"

namespace ljtrain::recompute {
namespace {

using base::OrderedJson;

OrderedJson sample_json(const ReplaySample& sample) {
  return {{"event", sample.event},
          {"requested_bytes", sample.requested},
          {"allocated_bytes", sample.allocated},
          {"active_bytes", sample.active},
          {"reserved_bytes", sample.reserved},
          {"fragmentation", sample.fragmentation()}};
}

OrderedJson failure_json(const Replay& replay) {
  if (!replay.failure) {
    return nullptr;
  }
  const OutOfMemory& failure = *replay.failure;
  return {{"event", replay.failed_event},       {"requested_bytes", failure.requested},
          {"needed_bytes", failure.needed},     {"limit_bytes", failure.limit},
          {"reserved_bytes", failure.reserved}, {"allocated_bytes", failure.allocated},
          {"cached_bytes", failure.cached},     {"largest_free_bytes", failure.largest_free},
          {"fragmented", failure.fragmented()}, {"reason", failure.reason()}};
}

OrderedJson simulated_json(const SimulatedSetting& simulated) {
  const Replay& replay = simulated.replay;
  OrderedJson json{{"settings", simulated.settings.text},
                   {"without_effect", simulated.settings.without_effect},
                   {"peak_requested_bytes", replay.stats.peak_requested},
                   {"peak_allocated_bytes", replay.stats.peak_allocated},
                   {"peak_reserved_bytes", replay.stats.peak_reserved},
                   {"at_peak_reserved", sample_json(replay.at_peak_reserved)},
                   {"device_allocations", replay.stats.device_allocations},
                   {"device_frees", replay.stats.device_frees},
                   {"cache_flushes", replay.stats.cache_flushes},
                   {"out_of_memory_served", replay.served},
                   {"out_of_memory", failure_json(replay)}};
  if (!replay.samples.empty()) {
    OrderedJson timeline = OrderedJson::array();
    for (const ReplaySample& sample : replay.samples) {
      timeline.push_back(sample_json(sample));
    }
    json["timeline"] = std::move(timeline);
  }
  return json;
}

OrderedJson recorded_json(const MemoryReport& report) {
  const RecordedMemory& recorded = report.snapshot.recorded;
  OrderedJson failures = OrderedJson::array();
  for (const RecordedFailure& failure : recorded.failures) {
    failures.push_back({{"event", failure.event},
                        {"requested_bytes", failure.requested},
                        {"device_free_bytes", failure.device_free},
                        {"reserved_bytes", failure.reserved},
                        {"live_bytes", failure.live},
                        {"owner", report.snapshot.trace.owners[failure.owner]},
                        {"cause", cause_of(failure)}});
  }
  return {{"peak_live_bytes", recorded.peak_live},
          {"peak_live_event", recorded.peak_live_event},
          {"peak_reserved_bytes", recorded.peak_reserved},
          {"peak_reserved_event", recorded.peak_reserved_event},
          {"live_at_peak_reserved_bytes", recorded.live_at_peak_reserved},
          {"live_at_end_bytes", recorded.live_at_end},
          {"reserved_at_end_bytes", recorded.reserved_at_end},
          {"device_allocations", recorded.device_allocations},
          {"device_frees", recorded.device_frees},
          {"out_of_memory", std::move(failures)}};
}

}  // namespace

OrderedJson report_json(const MemoryReport& report, int top) {
  const MemorySnapshot& snapshot = report.snapshot;
  OrderedJson owners = OrderedJson::array();
  for (const OwnedBytes& owner : report.owners) {
    if (static_cast<int>(owners.size()) < top) {
      owners.push_back({{"owner", snapshot.trace.owners[owner.owner]},
                        {"bytes", owner.bytes},
                        {"allocations", owner.allocations}});
    }
  }
  OrderedJson others = OrderedJson::array();
  for (const SimulatedSetting& simulated : report.others) {
    others.push_back(simulated_json(simulated));
  }
  auto error = report.reserved_error();
  return {
      {"schema_version", 1},
      {"file", report.file},
      {"device", snapshot.device},
      {"events_per_device", snapshot.events_per_device},
      {"events", snapshot.trace.events.size()},
      {"allocations_before", snapshot.live_before},
      {"events_left_out", snapshot.left_out},
      {"settings", snapshot.settings},
      {"settings_problem",
       snapshot.settings_problem.empty() ? OrderedJson() : OrderedJson(snapshot.settings_problem)},
      {"limit_bytes", report.limit ? OrderedJson(*report.limit) : OrderedJson()},
      {"limit_from_trace", report.limit_from_trace},
      {"recorded", recorded_json(report)},
      {"owners_at_peak", std::move(owners)},
      {"simulation", kUnverified},
      {"simulated_reserved_error", error ? OrderedJson(*error) : OrderedJson()},
      {"simulated", simulated_json(report.as_recorded)},
      {"other_settings", std::move(others)}};
}

}  // namespace ljtrain::recompute
