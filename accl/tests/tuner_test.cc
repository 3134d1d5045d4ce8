#include "tuner/tuner.h"

#include <gtest/gtest.h>

namespace ljtrain::accl::tuner {
namespace {

std::uint32_t allowed(const char* nccl_algo, OperationKind kind) {
  return allowed_algorithms(nccl_algo)[static_cast<std::size_t>(kind)];
}
constexpr std::uint32_t bit(Algorithm algorithm) { return 1U << static_cast<unsigned>(algorithm); }
constexpr std::uint32_t kAll = (1U << kAlgorithms) - 1;

TEST(Tuner, NcclAlgoNamesWhatIsAllowed) {
  EXPECT_EQ(allowed(nullptr, OperationKind::kAllReduce), kAll);
  EXPECT_EQ(allowed("", OperationKind::kAllReduce), kAll);
  EXPECT_EQ(allowed("Ring", OperationKind::kBroadcast), bit(Algorithm::kRing));
  EXPECT_EQ(allowed("ring,TREE", OperationKind::kReduce),
            bit(Algorithm::kRing) | bit(Algorithm::kTree));
  EXPECT_EQ(allowed("^ring", OperationKind::kReduce), kAll & ~bit(Algorithm::kRing));
  EXPECT_EQ(allowed("nvls", OperationKind::kAllReduce), kAll) << "names that ACCL does not have";
}

TEST(Tuner, NcclAlgoForOneFunction) {
  constexpr const char* kText = "ring;allreduce:tree,collnet;reducescatter:^ring";
  EXPECT_EQ(allowed(kText, OperationKind::kAllReduce), bit(Algorithm::kTree));
  EXPECT_EQ(allowed(kText, OperationKind::kReduceScatter), kAll & ~bit(Algorithm::kRing));
  EXPECT_EQ(allowed(kText, OperationKind::kAllGather), bit(Algorithm::kRing));
  EXPECT_EQ(allowed("allreduce:tree", OperationKind::kBroadcast), kAll);
  EXPECT_EQ(allowed("all_reduce:tree", OperationKind::kAllReduce), bit(Algorithm::kTree));
  EXPECT_EQ(allowed(";;", OperationKind::kAllReduce), kAll);
}

TEST(Tuner, NcclAlgoThatCannotBeMeant) {
  for (const char* text : {"Foo", "^Foo", "ring,foo", "x:ring", "^ring,tree,recursive,direct"}) {
    EXPECT_THROW(allowed_algorithms(text), Error) << text;
  }
}

}  // namespace
}  // namespace ljtrain::accl::tuner
