// Random programs against what must hold whatever the allocator decides: live blocks never overlap,
// blocks tile their segments, the counters are the sums over blocks, everything freed goes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

#include "allocator/simulator.h"

namespace ljtrain::recompute {
namespace {

constexpr int kOperations = 3000;
constexpr std::int64_t kTotal = 2048 * kMebibyte;

class RandomProgram {
 public:
  RandomProgram(const char* settings, std::uint32_t seed)
      : simulator_(parse_allocator_settings(settings), {.total = kTotal}), random_(seed) {}

  void run() {
    for (int i = 0; i < kOperations; ++i) {
      step();
      if (i % 50 == 0) {
        check();
      }
    }
    finish();
  }

  const AllocatorStats& stats() const { return simulator_.stats(); }

 private:
  using Block = AllocatorSimulator::Block;
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(count));
  }

  void step() {
    std::int64_t choice = below(100);
    if (choice < 52 || live_.empty()) {
      allocate();
    } else if (choice < 92) {
      release(below(static_cast<std::int64_t>(live_.size())));
    } else if (choice < 95) {
      auto at = std::next(live_.begin(), below(static_cast<std::int64_t>(live_.size())));
      simulator_.record_stream(at->second.block, below(3));
    } else if (choice < 98) {
      simulator_.synchronize(below(3));
    } else if (choice == 98) {
      simulator_.empty_cache();
    }
  }

  void allocate() {
    static constexpr std::array<std::int64_t, 4> kLargest{4096, kMebibyte, 10 * kMebibyte,
                                                          200 * kMebibyte};
    std::int64_t bytes = 1 + below(kLargest[below(4)]);
    Block* block = simulator_.allocate(bytes, below(3));
    if (block == nullptr) {
      ASSERT_GT(simulator_.stats().reserved + simulator_.last_failure()->needed, 0);
      return;
    }
    std::int64_t address = AllocatorSimulator::address(block);
    std::int64_t size = AllocatorSimulator::size(block);
    ASSERT_GE(size, bytes);
    // The neighbours among what is live must not reach into it.
    auto after = live_.lower_bound(address);
    ASSERT_TRUE(after == live_.end() || address + size <= after->first);
    ASSERT_TRUE(after == live_.begin() ||
                std::prev(after)->first + std::prev(after)->second.size <= address);
    live_[address] = {block, size, bytes};
  }

  void release(std::int64_t index) {
    auto at = std::next(live_.begin(), index);
    simulator_.free(at->second.block);
    live_.erase(at);
  }

  void check() {
    std::int64_t reserved = 0;
    std::int64_t allocated = 0;
    std::int64_t active = 0;
    for (const auto& segment : simulator_.segments()) {
      std::int64_t address = segment.address;
      for (const auto& piece : segment.blocks) {
        ASSERT_GT(piece.bytes, 0);
        ASSERT_EQ(live_.contains(address), piece.allocated);
        reserved += piece.bytes;
        allocated += piece.allocated ? piece.bytes : 0;
        active += piece.active ? piece.bytes : 0;
        address += piece.bytes;
      }
    }
    std::int64_t requested = 0;
    for (const auto& [address, live] : live_) {
      requested += live.requested;
    }
    const AllocatorStats& now = simulator_.stats();
    ASSERT_EQ(now.reserved, reserved);
    ASSERT_EQ(now.allocated, allocated);
    ASSERT_EQ(now.active, active);
    ASSERT_EQ(now.requested, requested);
    ASSERT_GE(reserved, active);
    ASSERT_GE(active, allocated);
    ASSERT_GE(allocated, requested);
    ASSERT_LE(reserved, kTotal);
  }

  void finish() {
    while (!live_.empty()) {
      release(0);
    }
    simulator_.empty_cache();
    EXPECT_EQ(stats().requested, 0);
    EXPECT_EQ(stats().active, 0);
    EXPECT_EQ(stats().reserved, 0);
    EXPECT_TRUE(simulator_.segments().empty());
    EXPECT_GT(stats().peak_reserved, 0);
    EXPECT_GE(stats().peak_reserved, stats().peak_active);
  }

  struct Live {
    Block* block = nullptr;
    std::int64_t size = 0;
    std::int64_t requested = 0;
  };
  AllocatorSimulator simulator_;
  std::mt19937_64 random_;
  std::map<std::int64_t, Live> live_;  // by address
};

class SimulatorProperty : public ::testing::TestWithParam<const char*> {};

TEST_P(SimulatorProperty, HoldsForRandomPrograms) {
  for (std::uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    RandomProgram program(GetParam(), seed);
    program.run();
    RandomProgram again(GetParam(), seed);
    again.run();
    EXPECT_EQ(program.stats(), again.stats());  // the same, whatever the addresses of this process
    ASSERT_FALSE(HasFatalFailure());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, SimulatorProperty,
    ::testing::Values("", "expandable_segments:True", "max_split_size_mb:64",
                      "max_split_size_mb:20,max_non_split_rounding_mb:100",
                      "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
                      "roundup_power2_divisions:4", "large_segment_size_mb:13",
                      "expandable_segments:True,max_split_size_mb:32,large_segment_size_mb:13",
                      "expandable_segments:True,roundup_power2_divisions:[1:2,>:8]",
                      "throw_on_cudamalloc_oom:True"));

}  // namespace
}  // namespace ljtrain::recompute
