#include "algorithm/recursive.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "stream_reference.h"

namespace ljtrain::accl {
namespace {

using test::Rank;
using test::StreamRank;

constexpr OperationKind kKinds[] = {OperationKind::kAllReduce};
constexpr test::Sweep kDoubling = {algorithm::recursive_doubling, kKinds};
constexpr test::Sweep kHalving = {algorithm::halving_doubling, kKinds};

class RecursiveRanks : public ::testing::TestWithParam<int> {};

TEST_P(RecursiveRanks, Doubling) { test::sweep_threads(kDoubling, GetParam()); }
TEST_P(RecursiveRanks, HalvingDoubling) { test::sweep_threads(kHalving, GetParam()); }
INSTANTIATE_TEST_SUITE_P(Recursive, RecursiveRanks, ::testing::Range(2, 10));

TEST(Recursive, Processes) {
  for (const auto& sweep : {kDoubling, kHalving}) {
    test::sweep_processes(sweep, 4);
    test::sweep_processes(sweep, 7);
  }
}

// Where the order of the operands could show: signed zeros, NaNs with payloads, sums that round.
TEST(Recursive, SameBitsOnAllRanksWhateverTheValues) {
  for (const int ranks : {2, 3, 5, 8}) {
    for (const auto run : {algorithm::recursive_doubling, algorithm::halving_doubling}) {
      std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
      test::run_threads(ranks, [&](const Rank& self) {
        StreamRank rank(self);
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin}) {
          std::vector<float> data;
          for (std::size_t i = 0; i < 500; ++i) {
            const unsigned x = test::draw(self.rank, i);
            const float values[] = {0.0F,
                                    -0.0F,
                                    static_cast<float>(x) * 1.1e-3F,
                                    -1e30F,
                                    1e30F,
                                    1e-30F,
                                    std::nanf(std::to_string(1 + self.rank).c_str()),
                                    std::numeric_limits<float>::infinity()};
            data.push_back(values[(i < 250 ? x % 3 : x) % 8]);
          }
          run(rank.context(), {.kind = OperationKind::kAllReduce,
                               .send = data.data(),
                               .recv = data.data(),
                               .count = data.size(),
                               .type = DataType::kFloat32,
                               .op = op});
          results[static_cast<std::size_t>(self.rank)].insert(
              results[static_cast<std::size_t>(self.rank)].end(), data.begin(), data.end());
        }
      });
      for (const auto& result : results) {
        ASSERT_EQ(result.size(), results[0].size());
        EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0)
            << ranks << " ranks";
      }
    }
  }
}

TEST(Recursive, SaysWhatItDoes) {
  EXPECT_TRUE(algorithm::recursive_supports({.kind = OperationKind::kAllReduce}, 3));
  EXPECT_FALSE(algorithm::recursive_supports({.kind = OperationKind::kReduce}, 3));
}

}  // namespace
}  // namespace ljtrain::accl
