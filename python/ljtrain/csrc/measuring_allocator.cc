#include "measuring_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "immortal.h"

namespace ljtrain {
namespace {

// Above PyTorch's default (0) and below what a program that insists on its own would use.
constexpr std::uint8_t kPriority = 1;
constexpr std::size_t kShards = 64;
constexpr unsigned kHashBits = 64;
constexpr std::size_t kFirstCapacity = 256;
// alloc_cpu aligns to 64 bytes, so the low six bits of a pointer say nothing.
constexpr unsigned kAlignmentBits = 6;

// Held for a few instructions, so waiting in the kernel would cost more than it saves; yields all
// the same, as ranks may have more threads than cores.
class SpinLock {
 public:
  void lock() {
    while (taken_.test_and_set(std::memory_order_acquire)) {
      std::this_thread::yield();
    }
  }
  void unlock() { taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag taken_;
};

std::uint64_t hash(const void* pointer) {
  // Fibonacci hashing (Knuth, TAOCP volume 3, 6.4): the high bits are well mixed.
  return (reinterpret_cast<std::uintptr_t>(pointer) >> kAlignmentBits) * 0x9E3779B97F4A7C15ULL;
}

// Pointer to size, open addressing with linear probing; removal shifts followers back, so there are
// no tombstones.
class SizeTable {
 public:
  void insert(void* pointer, std::size_t bytes) {
    const std::scoped_lock guard(lock_);
    if ((count_ + 1) * 2 > entries_.size()) {
      grow();
    }
    place({.pointer = pointer, .bytes = bytes});
    ++count_;
  }

  // The size of `pointer`, which leaves the table; nothing for a pointer that is not in it.
  std::optional<std::size_t> remove(const void* pointer) {
    const std::scoped_lock guard(lock_);
    if (count_ == 0) {
      return std::nullopt;
    }
    std::size_t slot = home(pointer);
    while (entries_[slot].pointer != pointer) {
      if (entries_[slot].pointer == nullptr) {
        return std::nullopt;
      }
      slot = next(slot);
    }
    const std::size_t bytes = entries_[slot].bytes;
    close_gap(slot);
    --count_;
    return bytes;
  }

 private:
  struct Entry {
    void* pointer = nullptr;
    std::size_t bytes = 0;
  };

  std::size_t next(std::size_t slot) const { return (slot + 1) & (entries_.size() - 1); }

  // Shards take the lowest bits of the hash's upper half; slots take the highest.
  std::size_t home(const void* pointer) const {
    return static_cast<std::size_t>(hash(pointer) >> shift_);
  }

  void place(const Entry& entry) {
    std::size_t slot = home(entry.pointer);
    while (entries_[slot].pointer != nullptr) {
      slot = next(slot);
    }
    entries_[slot] = entry;
  }

  void close_gap(std::size_t gap) {
    const std::size_t mask = entries_.size() - 1;
    for (std::size_t slot = next(gap); entries_[slot].pointer != nullptr; slot = next(slot)) {
      const std::size_t distance = (slot - home(entries_[slot].pointer)) & mask;
      if (distance >= ((slot - gap) & mask)) {
        entries_[gap] = entries_[slot];
        gap = slot;
      }
    }
    entries_[gap] = Entry{};
  }

  void grow() {
    std::vector<Entry> old(entries_.empty() ? kFirstCapacity : entries_.size() * 2);
    old.swap(entries_);
    shift_ = kHashBits - static_cast<unsigned>(std::countr_zero(entries_.size()));
    for (const Entry& entry : old) {
      if (entry.pointer != nullptr) {
        place(entry);
      }
    }
  }

  SpinLock lock_;
  std::vector<Entry> entries_;
  std::size_t count_ = 0;
  unsigned shift_ = kHashBits;  // leaves as many of the hash's bits as the table needs
};

struct alignas(64) Shard {
  SizeTable table;
};

struct State {
  std::array<Shard, kShards> shards;
  alignas(64) std::atomic<std::int64_t> current{0};
  std::atomic<std::int64_t> peak{0};
  std::atomic<std::int64_t> allocations{0};
  std::atomic<std::int64_t> refused{0};
  std::atomic<std::int64_t> limit{MeasuringAllocator::kNoLimit};
  std::atomic<bool> enabled{true};

  SizeTable& table_of(const void* pointer) {
    return shards[(hash(pointer) >> (kHashBits / 2)) % kShards].table;
  }
};

State& state() { return immortal<State>(); }

// `now`: what is alive with the new block, as its own addition found it.
void enter(void* pointer, std::size_t bytes, std::int64_t now) {
  State& s = state();
  s.table_of(pointer).insert(pointer, bytes);
  std::int64_t peak = s.peak.load(std::memory_order_relaxed);
  while (now > peak && !s.peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  s.allocations.fetch_add(1, std::memory_order_relaxed);
}

// Adds `bytes` to what is alive before they are, so that no two threads can pass `limit` together;
// returns the sum. Throws when it would be above.
std::int64_t reserve(std::size_t bytes, std::int64_t limit) {
  State& s = state();
  std::int64_t alive = s.current.load(std::memory_order_relaxed);
  do {
    if (alive > limit || bytes > static_cast<std::uint64_t>(limit - alive)) {
      s.refused.fetch_add(1, std::memory_order_relaxed);
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      // The worker and the Trainer know a lack of memory by these words.
      TORCH_CHECK_WITH(OutOfMemoryError, false, "not enough memory: you tried to allocate ", bytes,
                       " bytes where ", alive, " bytes of tensors are alive and the limit is ",
                       limit, " bytes.");
    }
  } while (!s.current.compare_exchange_weak(alive, alive + static_cast<std::int64_t>(bytes),
                                            std::memory_order_relaxed));
  return alive + static_cast<std::int64_t>(bytes);
}

void* allocate_block(std::size_t bytes) {
  try {
    return c10::alloc_cpu(bytes);
  } catch (c10::Error&) {
    c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
    throw;
  }
}

// What PyTorch's default allocator does to free a block.
void report_and_free(void* pointer) {
  if (pointer == nullptr) {
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(pointer);
  c10::free_cpu(pointer);
}

void count_and_free(void* pointer) {
  if (pointer == nullptr) {
    return;
  }
  // Out of the table before it is free: another thread may be given the same address at once.
  State& s = state();
  if (const auto bytes = s.table_of(pointer).remove(pointer)) {
    s.current.fetch_sub(static_cast<std::int64_t>(*bytes), std::memory_order_relaxed);
  }
  report_and_free(pointer);
}

}  // namespace

c10::DataPtr MeasuringAllocator::allocate(std::size_t bytes) {
  State& s = state();
  const bool counted = bytes > 0 && s.enabled.load(std::memory_order_relaxed);
  const std::int64_t limit = s.limit.load(std::memory_order_relaxed);
  const auto size = static_cast<std::int64_t>(bytes);
  std::int64_t now = 0;
  void* pointer = nullptr;
  if (counted && limit != kNoLimit) {
    now = reserve(bytes, limit);
    try {
      pointer = allocate_block(bytes);
    } catch (...) {
      s.current.fetch_sub(size, std::memory_order_relaxed);
      throw;
    }
  } else {
    pointer = allocate_block(bytes);
    now = counted ? s.current.fetch_add(size, std::memory_order_relaxed) + size : 0;
  }
  c10::profiledCPUMemoryReporter().New(pointer, bytes);
  if (!counted) {
    return {pointer, pointer, &report_and_free, c10::Device(c10::DeviceType::CPU)};
  }
  enter(pointer, bytes, now);
  return {pointer, pointer, &count_and_free, c10::Device(c10::DeviceType::CPU)};
}

c10::DeleterFnPtr MeasuringAllocator::raw_deleter() const { return &count_and_free; }

void MeasuringAllocator::copy_data(void* destination, const void* source, std::size_t count) const {
  default_copy_data(destination, source, count);
}

AllocatorStatistics MeasuringAllocator::statistics() const {
  const State& s = state();
  return {.current_bytes = s.current.load(std::memory_order_relaxed),
          .peak_bytes = s.peak.load(std::memory_order_relaxed),
          .allocations = s.allocations.load(std::memory_order_relaxed),
          .refused = s.refused.load(std::memory_order_relaxed)};
}

void MeasuringAllocator::reset_peak() {
  State& s = state();
  s.peak.store(s.current.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void MeasuringAllocator::set_enabled(bool enabled) {
  state().enabled.store(enabled, std::memory_order_relaxed);
}

void MeasuringAllocator::set_limit(std::int64_t bytes) {
  state().limit.store(bytes, std::memory_order_relaxed);
}

std::int64_t MeasuringAllocator::limit() const {
  return state().limit.load(std::memory_order_relaxed);
}

MeasuringAllocator& MeasuringAllocator::instance() { return immortal<MeasuringAllocator>(); }

void MeasuringAllocator::install() { c10::SetCPUAllocator(&instance(), kPriority); }

}  // namespace ljtrain
