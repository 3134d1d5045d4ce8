// The documented behaviours of PyTorch's allocator, one test each.
#include "allocator/simulator.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace ljtrain::recompute {
namespace {

constexpr std::int64_t kMiB = kMebibyte;

struct Fixture : ::testing::Test {
  std::unique_ptr<AllocatorSimulator> made;
  AllocatorSimulator& with(const char* settings, std::int64_t total = kUnlimited) {
    made = std::make_unique<AllocatorSimulator>(parse_allocator_settings(settings),
                                                DeviceMemory{.total = total});
    return *made;
  }
};
using Simulator = Fixture;

TEST_F(Simulator, RoundsTo512Bytes) {
  AllocatorSimulator& pool = with("");
  EXPECT_EQ(AllocatorSimulator::size(pool.allocate(1)), 512);
  EXPECT_EQ(AllocatorSimulator::size(pool.allocate(513)), 1024);
  EXPECT_EQ(pool.stats().requested, 514);
  EXPECT_EQ(pool.stats().allocated, 1536);
}

TEST_F(Simulator, SmallRequestsShareSegmentsOf2MiB) {
  AllocatorSimulator& pool = with("");
  pool.allocate(kMiB);  // the largest small request
  EXPECT_EQ(pool.stats().reserved, 2 * kMiB);
  pool.allocate(kMiB);
  EXPECT_EQ(pool.stats().reserved, 2 * kMiB);
  pool.allocate(1);
  EXPECT_EQ(pool.stats().reserved, 4 * kMiB);
}

TEST_F(Simulator, RequestsOf1To10MiBAreCutFromSegmentsOf20MiB) {
  AllocatorSimulator& pool = with("");
  pool.allocate(kMiB + kMiB / 10);
  EXPECT_EQ(pool.stats().reserved, 20 * kMiB);
  pool.allocate(10 * kMiB - 1);
  EXPECT_EQ(pool.stats().reserved, 20 * kMiB);
}

TEST_F(Simulator, RequestsFrom10MiBGetSegmentsInStepsOf2MiB) {
  AllocatorSimulator& pool = with("");
  pool.allocate(10 * kMiB);
  EXPECT_EQ(pool.stats().reserved, 10 * kMiB);
  pool.allocate(10 * kMiB + 1);
  EXPECT_EQ(pool.stats().reserved, 22 * kMiB);
}

TEST_F(Simulator, LargeBlocksAreSplitOnlyWhenMoreThan1MiBRemains) {
  AllocatorSimulator& pool = with("");
  auto* block = pool.allocate(20 * kMiB);
  pool.free(block);
  block = pool.allocate(19 * kMiB);
  EXPECT_EQ(AllocatorSimulator::size(block), 20 * kMiB);
  pool.free(block);
  block = pool.allocate(19 * kMiB - 512);
  EXPECT_EQ(AllocatorSimulator::size(block), 19 * kMiB - 512);
}

TEST_F(Simulator, TakesTheBestFitAndOfEqualsTheLowestAddress) {
  AllocatorSimulator& pool = with("");
  auto* large = pool.allocate(40 * kMiB);
  auto* first = pool.allocate(30 * kMiB);
  auto* second = pool.allocate(30 * kMiB);
  std::int64_t address = AllocatorSimulator::address(first);
  pool.free(large);
  pool.free(second);
  pool.free(first);
  EXPECT_EQ(AllocatorSimulator::address(pool.allocate(29 * kMiB)), address);
}

TEST_F(Simulator, FreedNeighboursBecomeOneBlock) {
  AllocatorSimulator& pool = with("");
  auto* a = pool.allocate(4 * kMiB);
  auto* b = pool.allocate(4 * kMiB);
  auto* c = pool.allocate(4 * kMiB);
  pool.free(a);
  pool.free(c);
  pool.free(b);
  ASSERT_EQ(pool.segments().size(), 1U);
  EXPECT_EQ(pool.segments()[0].blocks.size(), 1U);
}

TEST_F(Simulator, StreamsDoNotShareBlocks) {
  AllocatorSimulator& pool = with("");
  pool.free(pool.allocate(30 * kMiB, 0));
  pool.allocate(30 * kMiB, 7);
  EXPECT_EQ(pool.stats().reserved, 60 * kMiB);
}

TEST_F(Simulator, PrivatePoolsKeepTheirSegments) {
  AllocatorSimulator& pool = with("");
  pool.free(pool.allocate(30 * kMiB, 0, {1, 0}));
  pool.allocate(30 * kMiB);
  EXPECT_EQ(pool.stats().reserved, 60 * kMiB);
  pool.empty_cache();
  EXPECT_EQ(pool.stats().reserved, 60 * kMiB);
  EXPECT_EQ(pool.allocate(30 * kMiB, 0, {1, 0}) != nullptr, true);
  EXPECT_EQ(pool.stats().reserved, 60 * kMiB);
}

TEST_F(Simulator, EmptyCacheGivesWholeSegmentsBack) {
  AllocatorSimulator& pool = with("");
  auto* kept = pool.allocate(4 * kMiB);
  pool.free(pool.allocate(4 * kMiB));
  pool.free(pool.allocate(30 * kMiB));
  pool.empty_cache();
  EXPECT_EQ(pool.stats().reserved, 20 * kMiB);
  pool.free(kept);
  pool.empty_cache();
  EXPECT_EQ(pool.stats().reserved, 0);
}

TEST_F(Simulator, CachedSegmentsGoBackBeforeAnAllocationFails) {
  AllocatorSimulator& pool = with("", 100 * kMiB);
  pool.free(pool.allocate(60 * kMiB));
  EXPECT_NE(pool.allocate(80 * kMiB), nullptr);
  EXPECT_EQ(pool.stats().cache_flushes, 1);
  EXPECT_EQ(pool.stats().reserved, 80 * kMiB);
}

TEST_F(Simulator, SaysWhyAnAllocationFailed) {
  AllocatorSimulator& pool = with("", 100 * kMiB);
  auto* a = pool.allocate(40 * kMiB);
  pool.allocate(40 * kMiB);
  EXPECT_EQ(pool.allocate(30 * kMiB), nullptr);
  ASSERT_TRUE(pool.last_failure());
  EXPECT_FALSE(pool.last_failure()->fragmented());
  EXPECT_EQ(pool.last_failure()->limit, 100 * kMiB);
  EXPECT_NE(pool.last_failure()->reason().find("100.00 MiB"), std::string::npos);
  pool.free(a);
  EXPECT_NE(pool.allocate(20 * kMiB), nullptr);  // splits the cached 40 MiB
  EXPECT_EQ(pool.allocate(50 * kMiB), nullptr);
  EXPECT_FALSE(pool.last_failure()->fragmented());
  EXPECT_EQ(pool.stats().out_of_memory, 2);
}

TEST_F(Simulator, FragmentationIsNamed) {
  AllocatorSimulator& pool = with("", 40 * kMiB);
  std::vector<AllocatorSimulator::Block*> blocks;
  for (int i = 0; i < 10; ++i) {
    blocks.push_back(pool.allocate(4 * kMiB));
  }
  for (int i = 0; i < 10; i += 2) {
    pool.free(blocks[i]);
  }
  EXPECT_EQ(pool.allocate(12 * kMiB), nullptr);
  ASSERT_TRUE(pool.last_failure()->fragmented());
  EXPECT_EQ(pool.last_failure()->cached, 20 * kMiB);
  EXPECT_EQ(pool.last_failure()->largest_free, 4 * kMiB);
  EXPECT_NE(pool.last_failure()->reason().find("pieces"), std::string::npos);
}

TEST_F(Simulator, ExpandableSegmentsGrowInsteadOfFragmenting) {
  AllocatorSimulator& pool = with("expandable_segments:True", 40 * kMiB);
  pool.free(pool.allocate(12 * kMiB));
  EXPECT_EQ(pool.stats().reserved, 20 * kMiB);
  pool.allocate(30 * kMiB);  // grows the free 20 MiB by one page
  EXPECT_EQ(pool.stats().reserved, 40 * kMiB);
  EXPECT_EQ(pool.segments().size(), 1U);
}

TEST_F(Simulator, ExpandableSegmentsGiveFreePagesBack) {
  AllocatorSimulator& pool = with("expandable_segments:True");
  auto* a = pool.allocate(50 * kMiB);
  auto* b = pool.allocate(50 * kMiB);
  pool.free(a);
  pool.empty_cache();
  EXPECT_EQ(pool.stats().reserved, 60 * kMiB);  // two pages of 20 MiB lay within a
  pool.free(b);
  pool.empty_cache();
  EXPECT_EQ(pool.stats().reserved, 0);
}

TEST_F(Simulator, OversizeBlocksAreNotSplit) {
  AllocatorSimulator& pool = with("max_split_size_mb:64");
  pool.free(pool.allocate(100 * kMiB));
  EXPECT_NE(pool.allocate(30 * kMiB), nullptr);
  EXPECT_EQ(pool.stats().reserved, 130 * kMiB);  // smaller requests do not take oversize blocks
  EXPECT_EQ(AllocatorSimulator::size(pool.allocate(90 * kMiB)), 100 * kMiB);
  EXPECT_EQ(pool.stats().reserved, 130 * kMiB);
}

TEST_F(Simulator, OversizeBlocksServeRequestsWithinTheRounding) {
  AllocatorSimulator& pool = with("max_split_size_mb:64,max_non_split_rounding_mb:40");
  pool.free(pool.allocate(200 * kMiB));
  pool.allocate(161 * kMiB);  // 39 MiB too large is taken
  EXPECT_EQ(pool.stats().reserved, 200 * kMiB);
  pool.allocate(100 * kMiB);
  EXPECT_EQ(pool.stats().reserved, 300 * kMiB);
}

// Above half of the 900 MiB that the process may have, a cached segment goes back on a miss.
TEST_F(Simulator, GarbageCollectionNeedsAFraction) {
  for (bool limited : {true, false}) {
    AllocatorSimulator& pool =
        with(limited ? "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9"
                     : "garbage_collection_threshold:0.5",
             1000 * kMiB);
    auto* cached = pool.allocate(300 * kMiB);
    pool.allocate(200 * kMiB, 1);
    pool.free(cached);
    pool.allocate(10 * kMiB, 2);
    EXPECT_EQ(pool.stats().reserved, (limited ? 210 : 510) * kMiB);
    EXPECT_EQ(pool.stats().device_frees, limited ? 1 : 0);
  }
}

TEST_F(Simulator, GarbageCollectionSparesWhatWasUsedLately) {
  AllocatorSimulator& pool =
      with("garbage_collection_threshold:0.13,per_process_memory_fraction:0.9", 10000 * kMiB);
  auto* a = pool.allocate(300 * kMiB, 0);
  auto* b = pool.allocate(400 * kMiB, 1);
  pool.free(a);
  pool.free(pool.allocate(200 * kMiB, 2));  // searches pass, a grows old
  pool.free(b);
  pool.allocate(500 * kMiB, 3);  // 1170 MiB are not exceeded before this one
  EXPECT_EQ(pool.stats().device_frees, 0);
  pool.allocate(600 * kMiB, 3);
  EXPECT_EQ(pool.stats().device_frees, 1);
  EXPECT_EQ(pool.segments().front().stream, 1);  // b, younger than a
}

TEST_F(Simulator, FractionLimitsTheProcess) {
  AllocatorSimulator& pool = with("per_process_memory_fraction:0.5", 100 * kMiB);
  EXPECT_NE(pool.allocate(50 * kMiB), nullptr);
  EXPECT_EQ(pool.allocate(1), nullptr);
  EXPECT_EQ(pool.last_failure()->limit, 50 * kMiB);
}

TEST_F(Simulator, EarlyFailureLeavesTheCacheAlone) {
  AllocatorSimulator& pool = with("throw_on_cudamalloc_oom:True", 100 * kMiB);
  pool.free(pool.allocate(60 * kMiB));
  EXPECT_EQ(pool.allocate(80 * kMiB), nullptr);
  EXPECT_EQ(pool.stats().reserved, 60 * kMiB);
}

TEST_F(Simulator, RecordedStreamsDelayTheFree) {
  AllocatorSimulator& pool = with("");
  auto* block = pool.allocate(30 * kMiB);
  pool.record_stream(block, 5);
  pool.free(block);
  EXPECT_EQ(pool.stats().allocated, 0);
  EXPECT_EQ(pool.stats().active, 30 * kMiB);
  pool.allocate(30 * kMiB);  // stream 5 is not there yet
  EXPECT_EQ(pool.stats().reserved, 60 * kMiB);
  pool.synchronize(5);
  pool.allocate(30 * kMiB);
  EXPECT_EQ(pool.stats().reserved, 60 * kMiB);
}

TEST_F(Simulator, TheOwnStreamNeedsNoRecording) {
  AllocatorSimulator& pool = with("");
  auto* block = pool.allocate(30 * kMiB, 5);
  pool.record_stream(block, 5);
  pool.free(block);
  EXPECT_EQ(pool.stats().active, 0);
}

TEST_F(Simulator, MemoryPressureWaitsForStreams) {
  AllocatorSimulator& pool = with("", 50 * kMiB);
  auto* block = pool.allocate(30 * kMiB);
  pool.free_later(block);
  EXPECT_NE(pool.allocate(40 * kMiB), nullptr);
  EXPECT_EQ(pool.stats().reserved, 40 * kMiB);
}

}  // namespace
}  // namespace ljtrain::recompute
