#include "algorithm/ring.h"

#include <gtest/gtest.h>

#include "stream_reference.h"

namespace ljtrain::accl {
namespace {

using namespace std::chrono_literals;
using test::Rank;
using test::StreamRank;

constexpr OperationKind kKinds[] = {OperationKind::kAllReduce, OperationKind::kAllGather,
                                    OperationKind::kReduceScatter, OperationKind::kBroadcast,
                                    OperationKind::kReduce};
constexpr test::Sweep kRing = {algorithm::ring, kKinds, true};

class RingRanks : public ::testing::TestWithParam<int> {};

TEST_P(RingRanks, Threads) { test::sweep_threads(kRing, GetParam()); }
INSTANTIATE_TEST_SUITE_P(Ring, RingRanks, ::testing::Range(2, 10));

TEST(Ring, Processes) {
  test::sweep_processes(kRing, 2);
  test::sweep_processes(kRing, 5);
}

TEST(Ring, SaysWhatItDoes) {
  for (const OperationKind kind : kRing.kinds) {
    EXPECT_TRUE(algorithm::ring_supports({.kind = kind}, 3));
  }
  EXPECT_FALSE(algorithm::ring_supports({.kind = OperationKind::kAllToAll}, 3));
  EXPECT_FALSE(algorithm::ring_supports({.kind = OperationKind::kBarrier}, 3));
}

// One rank's block is most of the whole: windows in which only one has something to send.
TEST(Ring, VeryUnevenParts) {
  test::run_threads(4, [](const Rank& self) {
    StreamRank rank(self);
    const std::vector<std::size_t> counts = {3, 300'000, 0, 20'000};
    const auto own = static_cast<std::size_t>(self.rank);
    std::vector<float> send(counts[own]);
    for (std::size_t i = 0; i < send.size(); ++i) {
      send[i] = static_cast<float>(i) + static_cast<float>(self.rank) / 4;
    }
    std::vector<std::vector<float>> recv;
    std::vector<Part> parts;
    for (const std::size_t count : counts) {
      recv.emplace_back(count);
      parts.push_back({recv.back().data(), count});
    }
    algorithm::ring(rank.context(), {.kind = OperationKind::kAllGather,
                                     .send = send.data(),
                                     .count = send.size(),
                                     .type = DataType::kFloat32,
                                     .recv_parts = parts});
    for (std::size_t peer = 0; peer < counts.size(); ++peer) {
      for (std::size_t i = 0; i < counts[peer]; ++i) {
        ASSERT_EQ(recv[peer][i], static_cast<float>(i) + static_cast<float>(peer) / 4);
      }
    }
  });
}

TEST(Ring, MissingRankIsADeadlineForAll) {
  test::run_threads(3, [](const Rank& self) {
    StreamRank rank(self, 0, 200ms);
    if (self.rank == 2) {
      return;
    }
    std::vector<float> data(100'000);
    const Collective call{
        .send = data.data(), .recv = data.data(), .count = data.size(), .type = DataType::kFloat32};
    Collective all_reduce = call;
    all_reduce.kind = OperationKind::kAllReduce;
    try {
      algorithm::ring(rank.context(), all_reduce);
      ADD_FAILURE() << "no error";
    } catch (const Error& failure) {
      EXPECT_EQ(failure.code(), ErrorCode::kTimeout) << failure.what();
    }
  });
}

TEST(Ring, DeadPeerIsNamedWithinASecond) {
  auto segment = test::make_segment(3);
  const auto ends = test::run_processes(segment, 3, [](const Rank& self) {
    StreamRank rank(self);
    if (self.rank == 1) {
      ::_exit(5);
    }
    std::vector<float> data(100'000);
    const auto started = Clock::now();
    try {
      algorithm::ring(rank.context(), {.kind = OperationKind::kAllReduce,
                                       .send = data.data(),
                                       .recv = data.data(),
                                       .count = data.size(),
                                       .type = DataType::kFloat32});
      ADD_FAILURE() << "no error";
    } catch (const Error& failure) {
      EXPECT_EQ(failure.ranks(), std::vector<int>{1}) << failure.what();
    }
    EXPECT_LT(Clock::now() - started, 1s);
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 5, 0}));
}

}  // namespace
}  // namespace ljtrain::accl
