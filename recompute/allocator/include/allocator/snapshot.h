// PyTorch's memory snapshots: what torch.cuda.memory._dump_snapshot(FILE) writes after
// torch.cuda.memory._record_memory_history(). Source: torch/cuda/memory.py (_snapshot) of 2.13.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "allocator/trace.h"

namespace ljtrain::recompute {

// An out-of-memory error in the trace. Bytes.
struct RecordedFailure {
  std::int64_t event = 0;  // in Trace::events
  std::int64_t requested = 0;
  std::int64_t device_free = 0;  // what CUDA still had
  std::int64_t reserved = 0;
  std::int64_t live = 0;  // as requested, with what waited for other streams
  std::int32_t owner = 0;
};

// What the recorded events say happened, without any simulation. Bytes.
struct RecordedMemory {
  std::int64_t peak_live = 0;  // as requested
  std::int64_t peak_live_event = 0;
  std::int64_t peak_reserved = 0;
  std::int64_t peak_reserved_event = 0;
  std::int64_t live_at_peak_reserved = 0;
  std::int64_t device_allocations = 0;
  std::int64_t device_frees = 0;
  std::int64_t reserved_at_end = 0;
  std::int64_t live_at_end = 0;
  std::vector<RecordedFailure> failures;
};

struct MemorySnapshot {
  Trace trace;
  RecordedMemory recorded;
  std::string settings;          // as the program had them
  std::string settings_problem;  // why the settings in the file could not be taken, or empty
  int device = 0;
  std::vector<std::int64_t> events_per_device;
  std::int64_t live_before = 0;  // allocations from before the recording
  std::int64_t left_out = 0;     // events that contradict others, and were left out
};

enum class OwnerKind { kFrame, kCategory, kMetadata };

struct SnapshotOptions {
  int device = -1;  // -1: the one with the most events
  OwnerKind owner = OwnerKind::kFrame;
};

// Throws UserError for anything that is no memory snapshot, for a snapshot with nothing in it, and
// for a device that is not there: what, where in the file, and how to mend it.
MemorySnapshot parse_memory_snapshot(std::string bytes, const std::string& name,
                                     const SnapshotOptions& options = {});
// Reads at most 16 GiB.
MemorySnapshot read_memory_snapshot(const std::filesystem::path& file,
                                    const SnapshotOptions& options = {});

}  // namespace ljtrain::recompute
