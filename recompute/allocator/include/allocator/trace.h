// What a program asks of the allocator, in order: from a memory snapshot, or made by a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/simulator.h"

namespace ljtrain::recompute {

struct TraceEvent {
  enum class Kind : std::uint8_t {
    kAllocate,
    kFree,       // and free for reuse at once
    kFreeLater,  // freed, but in use on another stream until kComplete
    kComplete,
    kOutOfMemory  // the program asked for this much and got an error
  };
  Kind kind = Kind::kAllocate;
  std::int32_t owner = 0;       // index into owners
  std::int32_t pool = 0;        // index into pools
  std::int64_t allocation = 0;  // which one, 0 and up; not for kOutOfMemory
  std::int64_t bytes = 0;       // 1 to kLargestRequest, for kAllocate and kOutOfMemory
  std::int64_t stream = 0;
};

struct Trace {
  std::vector<TraceEvent> events;
  // The first so many events only build what was there before.
  std::int64_t before = 0;
  std::int64_t allocations = 0;  // their numbers are below this
  std::vector<std::string> owners{"unknown"};
  std::vector<PoolId> pools{PoolId{0, 0}};

  // To build a trace by hand. allocate() returns the number for free().
  std::int64_t allocate(std::int64_t bytes, std::int32_t owner = 0, std::int64_t stream = 0);
  void free(std::int64_t allocation);
  std::int32_t add_owner(std::string name);
};

// The state after an event. Bytes.
struct ReplaySample {
  std::int64_t event = 0;
  std::int64_t requested = 0;
  std::int64_t allocated = 0;
  std::int64_t active = 0;
  std::int64_t reserved = 0;
  double fragmentation() const {  // share of the reserved memory that is in no use
    return reserved > 0 ? static_cast<double>(reserved - active) / static_cast<double>(reserved)
                        : 0;
  }
};

struct Replay {
  AllocatorStats stats;
  ReplaySample at_peak_reserved;  // of those, the event with the most requested
  ReplaySample at_peak_requested;
  std::vector<ReplaySample> samples;
  // The first allocation that failed and that the program itself had got; the replay ends there.
  std::optional<OutOfMemory> failure;
  std::int64_t failed_event = -1;
  // Of the kOutOfMemory events in the trace, those that would have got their memory here.
  std::int64_t served = 0;
};

// Plays the trace on a fresh allocator. `samples`: at most so many, spread evenly, each the state
// with the most reserved memory of its stretch of events; 0: none.
Replay replay(const Trace& trace, const AllocatorSettings& settings, DeviceMemory device,
              int samples = 0);

struct OwnedBytes {
  std::int32_t owner = 0;
  std::int64_t bytes = 0;
  std::int64_t allocations = 0;
};

// Who holds the memory after `event` (inclusive), as requested, the most first.
std::vector<OwnedBytes> owners_at(const Trace& trace, std::int64_t event);

}  // namespace ljtrain::recompute
