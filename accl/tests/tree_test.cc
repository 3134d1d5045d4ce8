#include "algorithm/tree.h"

#include <gtest/gtest.h>

#include "stream_reference.h"

namespace ljtrain::accl {
namespace {

using test::Rank;
using test::StreamRank;

constexpr OperationKind kKinds[] = {OperationKind::kAllReduce, OperationKind::kBroadcast,
                                    OperationKind::kReduce};
constexpr test::Sweep kTree = {algorithm::tree, kKinds};

class TreeRanks : public ::testing::TestWithParam<int> {};

TEST_P(TreeRanks, Threads) { test::sweep_threads(kTree, GetParam()); }
INSTANTIATE_TEST_SUITE_P(Tree, TreeRanks, ::testing::Range(2, 10));

TEST(Tree, Processes) {
  test::sweep_processes(kTree, 3);
  test::sweep_processes(kTree, 6);
}

TEST(Tree, EveryRoot) {
  constexpr int kRanks = 7;
  test::run_threads(kRanks, [](const Rank& self) {
    StreamRank rank(self);
    for (int root = 0; root < kRanks; ++root) {
      for (const OperationKind kind : {OperationKind::kBroadcast, OperationKind::kReduce}) {
        rank.run(algorithm::tree,
                 {.kind = kind, .type = DataType::kInt16, .count = 10'000, .root = root});
      }
    }
  });
}

TEST(Tree, SaysWhatItDoes) {
  for (const OperationKind kind : kTree.kinds) {
    EXPECT_TRUE(algorithm::tree_supports({.kind = kind}, 3));
  }
  EXPECT_FALSE(algorithm::tree_supports({.kind = OperationKind::kAllGather}, 3));
}

}  // namespace
}  // namespace ljtrain::accl
