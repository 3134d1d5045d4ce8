#include "allocator/trace.h"

#include <algorithm>
#include <utility>

namespace ljtrain::recompute {
namespace {

using Kind = TraceEvent::Kind;

class Player {
 public:
  Player(const Trace& trace, const AllocatorSettings& settings, DeviceMemory device)
      : trace_(trace), simulator_(settings, device), blocks_(trace.allocations) {}

  Replay play(int samples) {
    auto count = static_cast<std::int64_t>(trace_.events.size());
    std::int64_t stretch =
        samples > 0 ? std::max<std::int64_t>(1, (count + samples - 1) / samples) : count + 1;
    ReplaySample highest;
    for (std::int64_t i = 0; i < count && replay_.failed_event < 0; ++i) {
      play_event(i);
      const AllocatorStats& now = simulator_.stats();
      note_peaks(i, now);
      if (samples > 0) {
        if (i % stretch == 0 || now.reserved > highest.reserved ||
            (now.reserved == highest.reserved && now.requested > highest.requested)) {
          highest = sample(i, now);
        }
        if (i % stretch == stretch - 1 || i + 1 == count || replay_.failed_event >= 0) {
          replay_.samples.push_back(highest);
        }
      }
    }
    replay_.stats = simulator_.stats();
    return std::move(replay_);
  }

 private:
  static ReplaySample sample(std::int64_t event, const AllocatorStats& stats) {
    return {.event = event,
            .requested = stats.requested,
            .allocated = stats.allocated,
            .active = stats.active,
            .reserved = stats.reserved};
  }

  void note_peaks(std::int64_t event, const AllocatorStats& now) {
    const ReplaySample& peak = replay_.at_peak_reserved;
    if (now.reserved > peak.reserved ||
        (now.reserved == peak.reserved && now.requested > peak.requested)) {
      replay_.at_peak_reserved = sample(event, now);
    }
    if (now.requested > replay_.at_peak_requested.requested) {
      replay_.at_peak_requested = sample(event, now);
    }
  }

  void play_event(std::int64_t index) {
    const TraceEvent& event = trace_.events[index];
    AllocatorSimulator::Block*& block =
        event.kind == Kind::kOutOfMemory ? none_ : blocks_[event.allocation];
    switch (event.kind) {
      case Kind::kAllocate:
        block = simulator_.allocate(event.bytes, event.stream, trace_.pools[event.pool]);
        if (block == nullptr) {
          replay_.failed_event = index;
          replay_.failure = simulator_.last_failure();
        }
        break;
      case Kind::kFree:
        simulator_.free(std::exchange(block, nullptr));
        break;
      case Kind::kFreeLater:
        simulator_.free_later(block);
        break;
      case Kind::kComplete:
        simulator_.complete(std::exchange(block, nullptr));
        break;
      case Kind::kOutOfMemory:
        block = simulator_.allocate(event.bytes, event.stream, trace_.pools[event.pool]);
        if (block != nullptr) {
          ++replay_.served;
          note_peaks(index, simulator_.stats());  // while it is there
          simulator_.free(std::exchange(block, nullptr));
        }
        break;
    }
  }

  const Trace& trace_;
  AllocatorSimulator simulator_;
  std::vector<AllocatorSimulator::Block*> blocks_;
  AllocatorSimulator::Block* none_ = nullptr;
  Replay replay_;
};

}  // namespace

std::int64_t Trace::allocate(std::int64_t bytes, std::int32_t owner, std::int64_t stream) {
  events.push_back({.kind = Kind::kAllocate,
                    .owner = owner,
                    .allocation = allocations,
                    .bytes = bytes,
                    .stream = stream});
  return allocations++;
}

void Trace::free(std::int64_t allocation) {
  events.push_back({.kind = Kind::kFree, .allocation = allocation});
}

std::int32_t Trace::add_owner(std::string name) {
  owners.push_back(std::move(name));
  return static_cast<std::int32_t>(owners.size()) - 1;
}

Replay replay(const Trace& trace, const AllocatorSettings& settings, DeviceMemory device,
              int samples) {
  return Player(trace, settings, device).play(samples);
}

std::vector<OwnedBytes> owners_at(const Trace& trace, std::int64_t event) {
  std::vector<const TraceEvent*> live(trace.allocations);
  for (std::int64_t i = 0; i <= event && i < static_cast<std::int64_t>(trace.events.size()); ++i) {
    const TraceEvent& now = trace.events[i];
    if (now.kind == Kind::kAllocate) {
      live[now.allocation] = &now;
    } else if (now.kind != Kind::kOutOfMemory) {
      live[now.allocation] = nullptr;
    }
  }
  std::vector<OwnedBytes> owned(trace.owners.size());
  for (const TraceEvent* allocation : live) {
    if (allocation != nullptr) {
      owned[allocation->owner].bytes += allocation->bytes;
      ++owned[allocation->owner].allocations;
    }
  }
  for (std::size_t i = 0; i < owned.size(); ++i) {
    owned[i].owner = static_cast<std::int32_t>(i);
  }
  std::erase_if(owned, [](const OwnedBytes& entry) { return entry.allocations == 0; });
  std::ranges::stable_sort(owned, std::greater<>(), &OwnedBytes::bytes);
  return owned;
}

}  // namespace ljtrain::recompute
