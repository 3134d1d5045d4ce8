#include "comm/results.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ljtrain::ljperf {
namespace {

using ljperf_comm::Op;
using ljperf_comm::Type;

// nccl-tests, doc/PERFORMANCE.md: AllReduce 2*(n-1)/n, ReduceScatter, AllGather and AlltoAll
// (n-1)/n, Broadcast and Reduce 1; src/gather.cu and src/scatter.cu: (n-1)/n.
TEST(BusBandwidth, HasTheFactorsOfNcclTests) {
  EXPECT_DOUBLE_EQ(ljperf_comm::bus_factor(Op::kAllReduce, 2), 1);
  EXPECT_DOUBLE_EQ(ljperf_comm::bus_factor(Op::kAllReduce, 4), 1.5);
  for (Op op : {Op::kAllGather, Op::kReduceScatter, Op::kAllToAll, Op::kGather, Op::kScatter}) {
    EXPECT_DOUBLE_EQ(ljperf_comm::bus_factor(op, 4), 0.75);
  }
  EXPECT_DOUBLE_EQ(ljperf_comm::bus_factor(Op::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(ljperf_comm::bus_factor(Op::kReduce, 4), 1);
}

TEST(BytesOfAnOperation, AreTheWholeBuffer) {
  EXPECT_EQ(ljperf_comm::count_of(Op::kAllReduce, Type::kFloat32, 1024, 4), 256u);
  EXPECT_EQ(ljperf_comm::count_of(Op::kAllGather, Type::kFloat32, 1024, 4), 64u);
  EXPECT_EQ(ljperf_comm::bytes_of(Op::kAllGather, Type::kFloat32, 64, 4), 1024u);
  // Never nothing: one element a rank, and the bytes say so.
  EXPECT_EQ(ljperf_comm::count_of(Op::kAllGather, Type::kFloat32, 8, 4), 1u);
  EXPECT_EQ(ljperf_comm::bytes_of(Op::kAllGather, Type::kFloat32, 1, 4), 16u);
  EXPECT_EQ(ljperf_comm::count_of(Op::kAllReduce, Type::kFloat64, 1, 2), 1u);
}

CommRow row(const std::string& library, std::uint64_t bytes, double seconds,
            int blocks = kVerdictBlocks) {
  CommRow result;
  result.library = library;
  result.op = Op::kAllReduce;
  result.dtype = Type::kFloat32;
  result.ranks = 4;
  result.bytes = bytes;
  for (int block = 0; block < blocks; ++block) {
    // A drift that all libraries share, and a little noise of each's own.
    double own = 1 + 0.01 * std::sin(block * static_cast<double>(library.size()));
    result.blocks.push_back(seconds * (1 + 0.5 * block) * own);
  }
  return result;
}

TEST(Rows, AreComparedInPairsSoThatSharedDriftCancels) {
  std::vector<CommRow> rows{row("memcpy", 1000, 1e-6), row("accl", 1000, 2e-6),
                            row("mpi", 1000, 3e-6), row("oneccl", 1000, 1e-6),
                            row("gl", 1000, 2e-6)};
  compare(rows);
  EXPECT_FALSE(rows[0].ratio.has_value());
  EXPECT_NEAR(rows[1].ratio.value().ratio, 0.5, 0.01);
  EXPECT_EQ(rows[1].ratio_to, "memcpy");
  EXPECT_NEAR(rows[2].ratio.value().ratio, 1.5, 0.02);
  EXPECT_EQ(verdict(*rows[2].ratio), "ahead");
  EXPECT_NEAR(rows[3].ratio.value().ratio, 0.5, 0.01);
  EXPECT_EQ(verdict(*rows[3].ratio), "behind");
  EXPECT_EQ(verdict(*rows[4].ratio), "even");
}

TEST(Rows, OfAnotherFormOrInterfaceAreNotCompared) {
  CommRow in_place = row("deepspeed_shm", 1000, 3e-6);
  in_place.in_place = true;
  CommRow c10d = row("gloo", 1000, 3e-6);
  c10d.interface = Interface::kC10d;
  std::vector<CommRow> rows{row("accl", 1000, 2e-6), in_place, c10d};
  compare(rows);
  EXPECT_FALSE(rows[1].ratio.has_value());
  EXPECT_FALSE(rows[2].ratio.has_value());
}

TEST(Rows, NeedTwentyBlocksForAVerdict) {
  std::vector<CommRow> rows{row("accl", 1000, 2e-6, 19), row("mpi", 1000, 3e-6, 19)};
  compare(rows);
  EXPECT_EQ(verdict(rows[1].ratio.value()), "");
  EXPECT_TRUE(to_json(rows[1])["ratio"]["verdict"].is_null());
}

TEST(Summary, IsTheGeometricMeanOverSizes) {
  std::vector<CommRow> all;
  for (auto [bytes, peer] : {std::pair{1000, 4e-6}, std::pair{2000, 1e-6}}) {
    std::vector<CommRow> rows{row("accl", static_cast<std::uint64_t>(bytes), 2e-6),
                              row("mpi", static_cast<std::uint64_t>(bytes), peer)};
    compare(rows);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  std::vector<CommSummary> summaries = summarise(all);
  ASSERT_EQ(summaries.size(), 1u);
  EXPECT_NEAR(summaries[0].geometric_mean.ratio, 1, 0.02);  // sqrt(2 * 0.5)
  EXPECT_EQ(summaries[0].sizes, 2u);
  EXPECT_EQ(summaries[0].behind, 1u);
  EXPECT_EQ(summaries[0].lowest_bytes, 2000u);
  EXPECT_NEAR(summaries[0].lowest, 0.5, 0.01);
}

TEST(Rows, AreJsonAsTheDesignHasIt) {
  CommRow one = row("mpi", 4000, 2e-6, 1);
  base::OrderedJson json = to_json(one);
  EXPECT_DOUBLE_EQ(json["time_us"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(json["algbw_gbps"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(json["busbw_gbps"].get<double>(), 3);
  EXPECT_EQ(json["interface"], "c");
  EXPECT_EQ(json["op"], "all_reduce");
  EXPECT_EQ(json["dtype"], "float32");
  EXPECT_TRUE(json["wrong"].is_null());  // not checked is not "none wrong"
  one.wrong = 0;
  EXPECT_EQ(to_json(one)["wrong"], 0);
}

}  // namespace
}  // namespace ljtrain::ljperf
