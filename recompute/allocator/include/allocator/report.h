// What a snapshot tells: its peak and who holds it, fragmentation, failed allocations and their
// causes, and what other settings would have given. `ljperf memory` prints it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/snapshot.h"
#include "allocator/trace.h"
#include "base/json.h"

namespace ljtrain::recompute {

// Stands wherever a simulated figure is shown.
inline constexpr const char* kUnverified = "unverified against a GPU trace";

struct AnalysisOptions {
  // Settings to try instead of the usual ones.
  std::vector<std::string> settings;
  // Memory that the process may take, in bytes; absent: what the trace's first out-of-memory error
  // shows, else no limit.
  std::optional<std::int64_t> limit;
  int samples = 200;  // points of the timeline
};

struct SimulatedSetting {
  AllocatorSettings settings;
  Replay replay;
};

struct MemoryReport {
  std::string file;
  MemorySnapshot snapshot;
  std::optional<std::int64_t> limit;
  bool limit_from_trace = false;
  std::vector<OwnedBytes> owners;  // at the recorded peak of live bytes
  SimulatedSetting as_recorded;    // the program's own settings, simulated
  std::vector<SimulatedSetting> others;
  // Share by which the simulated peak of reserved memory misses the recorded one; absent when
  // nothing was reserved in the trace.
  std::optional<double> reserved_error() const;
};

// Throws UserError for settings that cannot be parsed.
MemoryReport analyse(MemorySnapshot snapshot, std::string file, const AnalysisOptions& options);

// Why an allocation in the trace failed, in one sentence.
std::string cause_of(const RecordedFailure& failure);

// "schema_version": 1; docs/memory.md names the keys. `top`: owners at most.
base::OrderedJson report_json(const MemoryReport& report, int top);
// For people, 80 columns where paths allow.
std::string report_text(const MemoryReport& report, int top);

}  // namespace ljtrain::recompute
