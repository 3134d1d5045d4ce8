// The C interface: handles, arguments, collectives, groups, operators.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "accl/nccl_device.h"
#include "api_ranks.h"

namespace ljtrain::accl::testing {
namespace {

TEST(Api, VersionsAndTextsAreNcclS) {
  int version = 0;
  must(ncclGetVersion(&version));
  EXPECT_EQ(version, 22907);
  EXPECT_NE(std::string(acclVersion()).find("NCCL 2.29.7"), std::string::npos);
  std::vector<std::string> texts;
  for (int result = 0; result < ncclNumResults; ++result) {
    texts.emplace_back(ncclGetErrorString(static_cast<ncclResult_t>(result)));
    EXPECT_EQ(std::count(texts.begin(), texts.end(), texts.back()), 1) << texts.back();
  }
  EXPECT_STREQ(ncclGetErrorString(static_cast<ncclResult_t>(99)), "unknown result code");
  EXPECT_STREQ(ncclGetErrorString(static_cast<ncclResult_t>(-1)), "unknown result code");
}

TEST(Api, WhatIsNoCommunicatorIsRefused) {
  int count = 0;
  float value = 1;
  expect_refused(ncclInvalidArgument, "comm is NULL", ncclCommCount(nullptr, &count));
  const auto garbage = reinterpret_cast<ncclComm_t>(&value);
  expect_refused(ncclInvalidArgument, "is no communicator",
                 ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, garbage, nullptr));
  ncclComm_t comm = nullptr;
  must(ncclCommInitRank(&comm, 1, new_nccl_id(), 0));
  must(ncclCommDestroy(comm));
  expect_refused(ncclInvalidArgument, "has been destroyed", ncclCommCount(comm, &count));
  expect_refused(ncclInvalidArgument, "has been destroyed",
                 ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr));
  expect_refused(ncclInvalidArgument, "has been destroyed", ncclCommDestroy(comm));
  EXPECT_EQ(ncclCommDestroy(nullptr), ncclSuccess);
  EXPECT_EQ(ncclCommAbort(nullptr), ncclSuccess);
}

TEST(Api, ArgumentsAreChecked) {
  const AllRanks all(1);
  ncclComm_t comm = all[0];
  float a = 1;
  const auto bad_type = static_cast<ncclDataType_t>(12);
  const auto bad_op = static_cast<ncclRedOp_t>(5);
  expect_refused(ncclInvalidArgument, "sendbuff is NULL",
                 ncclAllReduce(nullptr, &a, 1, ncclFloat, ncclSum, comm, nullptr));
  expect_refused(ncclInvalidArgument, "recvbuff is NULL",
                 ncclAllReduce(&a, nullptr, 1, ncclFloat, ncclSum, comm, nullptr));
  expect_refused(ncclInvalidArgument, "datatype 12",
                 ncclAllReduce(&a, &a, 1, bad_type, ncclSum, comm, nullptr));
  expect_refused(ncclInvalidArgument, "op 0x5",
                 ncclAllReduce(&a, &a, 1, ncclFloat, bad_op, comm, nullptr));
  expect_refused(ncclInvalidArgument, "root 1",
                 ncclBroadcast(&a, &a, 1, ncclFloat, 1, comm, nullptr));
  expect_refused(ncclInvalidArgument, "root -1",
                 ncclReduce(&a, &a, 1, ncclFloat, ncclSum, -1, comm, nullptr));
  expect_refused(ncclInvalidArgument, "peer 7", ncclSend(&a, 1, ncclFloat, 7, comm, nullptr));
  expect_refused(ncclInvalidArgument, "more than memory can hold",
                 ncclAllReduce(&a, &a, SIZE_MAX / 2, ncclDouble, ncclSum, comm, nullptr));
  expect_refused(
      ncclInvalidArgument, "is not one of acclStreamCreate",
      ncclAllReduce(&a, &a, 1, ncclFloat, ncclSum, comm, reinterpret_cast<cudaStream_t>(&a)));
  expect_refused(ncclInvalidArgument, "comm is NULL", ncclCommInitRank(nullptr, 1, {}, 0));
  ncclComm_t made = comm;
  expect_refused(ncclInvalidArgument, "rank 2", ncclCommInitRank(&made, 2, new_nccl_id(), 2));
  EXPECT_EQ(made, nullptr);
  expect_refused(ncclInvalidArgument, "nranks is 0", ncclCommInitRank(&made, 0, new_nccl_id(), 0));
  expect_refused(ncclInvalidArgument, "all zero", ncclCommInitRank(&made, 1, {}, 0));
  const std::array<int, 2> twice = {3, 3};
  std::array<ncclComm_t, 2> pair{};
  expect_refused(ncclInvalidUsage, "device 3", ncclCommInitAll(pair.data(), 2, twice.data()));
  expect_refused(ncclInvalidArgument, "version is NULL", ncclGetVersion(nullptr));
  // CUDA's special values of the NULL stream.
  EXPECT_EQ(ncclAllReduce(&a, &a, 1, ncclFloat, ncclSum, comm, reinterpret_cast<cudaStream_t>(2)),
            ncclSuccess);
}

TEST(Api, ConfigurationsAreReadAsNcclReadsThem) {
  ncclComm_t comm = nullptr;
  const ncclUniqueId id = new_nccl_id();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 0;
  expect_refused(ncclInvalidArgument, "NCCL_CONFIG_INITIALIZER",
                 ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 2;
  expect_refused(ncclInvalidArgument, "config.blocking is 2",
                 ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  config = NCCL_CONFIG_INITIALIZER;
  config.minCTAs = 8;
  config.maxCTAs = 4;
  expect_refused(ncclInvalidArgument, "config.minCTAs is 8",
                 ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  config = NCCL_CONFIG_INITIALIZER;
  config.size = 8;
  expect_refused(ncclInvalidArgument, "config of 8 bytes",
                 ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  // A caller compiled with 2.14 has nothing behind `blocking`: what lies there must not be read.
  struct {
    std::size_t size = 24;
    unsigned magic = NCCL_API_MAGIC;
    unsigned version = 21400;
    int blocking = 1;
    int garbage[32];
  } old;
  std::memset(old.garbage, 0x7b, sizeof(old.garbage));
  must(ncclCommInitRankConfig(&comm, 1, id, 0, reinterpret_cast<ncclConfig_t*>(&old)));
  must(ncclCommDestroy(comm));
  // And one from the future has more.
  struct {
    ncclConfig_t known = NCCL_CONFIG_INITIALIZER;
    int unknown[8] = {};
  } future;
  future.known.size = sizeof(future);
  future.known.version = 23500;
  must(ncclCommInitRankConfig(&comm, 1, id, 0, &future.known));
  must(ncclCommDestroy(comm));
}

class ApiCollectives : public ::testing::TestWithParam<std::tuple<As, int>> {};

void check_all(ncclComm_t comm, int rank, int ranks) {
  constexpr int kCount = 1003;
  const auto n = static_cast<std::size_t>(kCount);
  const auto all = static_cast<std::size_t>(ranks) * n;
  const int sum = ranks * (ranks + 1) / 2;
  std::vector<int> one(n);
  std::vector<int> whole(all);
  std::vector<int> result(all);
  const auto fill = [&] {
    for (std::size_t i = 0; i < n; ++i) {
      one[i] = (rank + 1) * static_cast<int>(i + 1);
    }
    for (std::size_t i = 0; i < all; ++i) {
      whole[i] = (rank + 1) * static_cast<int>(i + 1);
    }
    std::fill(result.begin(), result.end(), -1);
  };
  const auto expect = [&](const char* what, std::size_t count, auto&& value) {
    for (std::size_t i = 0; i < count; ++i) {
      must_be(result[i] == value(static_cast<int>(i)), std::string(what) + " is wrong");
    }
    fill();
  };
  const int root = ranks - 1;
  const bool is_root = rank == root;
  fill();
  must(ncclAllReduce(one.data(), result.data(), n, ncclInt, ncclSum, comm, nullptr));
  expect("all_reduce", n, [&](int i) { return sum * (i + 1); });
  must(ncclReduce(one.data(), is_root ? result.data() : nullptr, n, ncclInt, ncclMax, root, comm,
                  nullptr));
  expect("reduce", is_root ? n : 0, [&](int i) { return ranks * (i + 1); });
  must(ncclBroadcast(is_root ? one.data() : nullptr, result.data(), n, ncclInt, root, comm,
                     nullptr));
  expect("broadcast", n, [&](int i) { return ranks * (i + 1); });
  std::copy(one.begin(), one.end(), result.begin());
  must(ncclBcast(result.data(), n, ncclInt, root, comm, nullptr));
  expect("bcast", n, [&](int i) { return ranks * (i + 1); });
  must(ncclAllGather(one.data(), result.data(), n, ncclInt, comm, nullptr));
  expect("all_gather", all, [&](int i) { return (i / kCount + 1) * (i % kCount + 1); });
  must(ncclReduceScatter(whole.data(), result.data(), n, ncclInt, ncclSum, comm, nullptr));
  expect("reduce_scatter", n, [&](int i) { return sum * (rank * kCount + i + 1); });
  must(ncclAlltoAll(whole.data(), result.data(), n, ncclInt, comm, nullptr));
  expect("all_to_all", all,
         [&](int i) { return (i / kCount + 1) * (rank * kCount + i % kCount + 1); });
  must(ncclGather(one.data(), is_root ? result.data() : nullptr, n, ncclInt, root, comm, nullptr));
  expect("gather", is_root ? all : 0, [&](int i) { return (i / kCount + 1) * (i % kCount + 1); });
  must(ncclScatter(is_root ? whole.data() : nullptr, result.data(), n, ncclInt, root, comm,
                   nullptr));
  expect("scatter", n, [&](int i) { return ranks * (rank * kCount + i + 1); });
  must(ncclAllReduce(nullptr, nullptr, 0, ncclInt, ncclSum, comm, nullptr));
}

TEST_P(ApiCollectives, GiveWhatTheyShould) {
  const auto [how, ranks] = GetParam();
  expect_no_failure(run_api_ranks(how, ranks, [ranks = ranks](ncclComm_t comm, int rank) {
    int count = 0;
    int own = -1;
    int device = 0;
    must(ncclCommCount(comm, &count));
    must(ncclCommUserRank(comm, &own));
    must(ncclCommCuDevice(comm, &device));
    must_be(count == ranks && own == rank && device == -1, "count, rank or device is wrong");
    check_all(comm, rank, ranks);
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, ApiCollectives,
    ::testing::Combine(::testing::Values(As::kThreads, As::kProcesses), ::testing::Values(1, 2, 3)),
    [](const auto& parameters) {
      return std::string(std::get<0>(parameters.param) == As::kThreads ? "Threads" : "Processes") +
             std::to_string(std::get<1>(parameters.param));
    });

TEST(Api, RanksThatDisagreeAllGetAnError) {
  const auto failures = run_api_ranks(As::kThreads, 2, [](ncclComm_t comm, int rank) {
    std::array<float, 4> data{};
    const std::size_t count = rank == 0 ? 4 : 3;
    must(ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclSum, comm, nullptr));
  });
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find("invalid usage"), std::string::npos) << failure;
    EXPECT_NE(failure.find("all_reduce"), std::string::npos) << failure;
  }
}

// ---- Operators ----------------------------------------------------------------------------------

TEST(Api, PremulSumScalesBeforeItAdds) {
  expect_no_failure(run_api_ranks(As::kThreads, 2, [](ncclComm_t comm, int rank) {
    float factor = rank == 0 ? 0.5F : 4;
    ncclRedOp_t now{};
    ncclRedOp_t late{};
    must(ncclRedOpCreatePreMulSum(&now, &factor, ncclFloat, ncclScalarHostImmediate, comm));
    must(ncclRedOpCreatePreMulSum(&late, &factor, ncclFloat, ncclScalarDevice, comm));
    must_be(now >= ncclNumOps && now <= ncclMaxRedOp && now != late,
            "the handles are no operators");
    factor = 1;
    const float value = 2;
    float result = 0;
    must(ncclAllReduce(&value, &result, 1, ncclFloat, now, comm, nullptr));
    must_be(result == 2 * 0.5F + 2 * 4, "an immediate factor was read again");
    must(ncclAllReduce(&value, &result, 1, ncclFloat, late, comm, nullptr));
    must_be(result == 4, "a late factor was not read when the operation ran");
    must(ncclRedOpDestroy(now, comm));
    must(ncclRedOpDestroy(late, comm));
  }));
}

struct SmallFactor {
  ncclDataType_t type;
  std::uint16_t bits;  // of 1.5
  std::uint16_t three;
};

TEST(Api, PremulSumReadsFactorsOfEveryType) {
  const AllRanks all(1);
  const std::array<SmallFactor, 4> floats = {{{ncclFloat16, 0x3e00, 0x4200},
                                              {ncclBfloat16, 0x3fc0, 0x4040},
                                              {ncclFloat8e4m3, 0x3c, 0x44},
                                              {ncclFloat8e5m2, 0x3e, 0x42}}};
  for (const SmallFactor& factor : floats) {
    ncclRedOp_t op{};
    std::uint16_t bits = factor.bits;
    must(ncclRedOpCreatePreMulSum(&op, &bits, factor.type, ncclScalarHostImmediate, all[0]));
    // 1.5 * 2: 3, exact in all of them. Two is one more in the exponent than 1.5 without its
    // fraction.
    std::uint16_t result = 0;
    const bool wide = factor.type == ncclFloat16 || factor.type == ncclBfloat16;
    const std::uint16_t two = wide ? 0x4000 : 0x40;
    must(ncclAllReduce(&two, &result, 1, factor.type, op, all[0], nullptr));
    EXPECT_EQ(result, factor.three) << factor.type;
    must(ncclRedOpDestroy(op, all[0]));
  }
  std::int64_t factor = -3;
  std::int64_t value = 5;
  ncclRedOp_t op{};
  must(ncclRedOpCreatePreMulSum(&op, &factor, ncclInt64, ncclScalarHostImmediate, all[0]));
  must(ncclAllReduce(&value, &value, 1, ncclInt64, op, all[0], nullptr));
  EXPECT_EQ(value, -15);
}

TEST(Api, OperatorsOfOthersAreRefused) {
  const AllRanks all(1);
  const AllRanks other(1);
  float factor = 2;
  float value = 1;
  ncclRedOp_t op{};
  const auto reduce = [&](ncclRedOp_t with, ncclComm_t comm) {
    return ncclAllReduce(&value, &value, 1, ncclFloat, with, comm, nullptr);
  };
  must(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, all[0]));
  must(reduce(op, all[0]));
  expect_refused(ncclInvalidArgument, "op 0x", reduce(op, other[0]));
  double wide = 1;
  expect_refused(ncclInvalidArgument, "op was made for float32",
                 ncclAllReduce(&wide, &wide, 1, ncclDouble, op, all[0], nullptr));
  expect_refused(ncclInvalidArgument, "is built in", ncclRedOpDestroy(ncclSum, all[0]));
  must(ncclRedOpDestroy(op, all[0]));
  expect_refused(ncclInvalidArgument, "op 0x", reduce(op, all[0]));
  expect_refused(ncclInvalidArgument, "op 0x", ncclRedOpDestroy(op, all[0]));
  ncclRedOp_t again{};
  must(ncclRedOpCreatePreMulSum(&again, &factor, ncclFloat, ncclScalarHostImmediate, all[0]));
  EXPECT_NE(again, op) << "the slot is used again, the handle must not be";
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): as a C program may
  const auto unknown = static_cast<ncclScalarResidence_t>(7);
  expect_refused(ncclInvalidArgument, "residence 7",
                 ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, unknown, all[0]));
}

// ---- Groups -------------------------------------------------------------------------------------

TEST(ApiGroups, RanksInOneThreadMeet) {
  const AllRanks all(3);
  std::vector<float> values(3, 1);
  for (int round = 0; round < 20; ++round) {
    must(ncclGroupStart());
    for (int rank = 0; rank < 3; ++rank) {
      float& value = values[static_cast<std::size_t>(rank)];
      must(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, all[rank], nullptr));
      must(ncclAllReduce(&value, &value, 1, ncclFloat, ncclAvg, all[rank], nullptr));
    }
    must(ncclGroupEnd());
  }
  for (const float value : values) {
    EXPECT_EQ(value, std::pow(3.0F, 20.0F));
  }
}

TEST(ApiGroups, OnlyTheOutermostEndRuns) {
  const AllRanks all(2);
  std::array<int, 2> values = {1, 2};
  must(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    must(ncclGroupStart());
    int& value = values[static_cast<std::size_t>(rank)];
    must(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, all[rank], nullptr));
    must(ncclGroupEnd());
  }
  EXPECT_EQ(values[0], 1);
  must(ncclGroupEnd());
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], 3);
  expect_refused(ncclInvalidUsage, "without ncclGroupStart", ncclGroupEnd());
}

TEST(ApiGroups, OneBadCallFailsTheGroup) {
  const AllRanks all(1);
  int value = 1;
  must(ncclGroupStart());
  must(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, all[0], nullptr));
  expect_refused(ncclInvalidArgument, "recvbuff is NULL",
                 ncclAllReduce(&value, nullptr, 1, ncclInt, ncclSum, all[0], nullptr));
  ncclComm_t made = nullptr;
  must(ncclCommInitRank(&made, 1, new_nccl_id(), 0));
  EXPECT_NE(made, nullptr);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_EQ(made, nullptr) << "a communicator of a failed group does not exist";
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("recvbuff is NULL"), std::string::npos);
  must(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, all[0], nullptr));
}

TEST(ApiGroups, ASimulatedGroupDoesNotRun) {
  const AllRanks all(1);
  std::vector<int> values(1 << 20, 3);
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  const auto simulate = [&](std::size_t count) {
    must(ncclGroupStart());
    must(ncclAllReduce(values.data(), values.data(), count, ncclInt, ncclProd, all[0], nullptr));
    must(ncclGroupSimulateEnd(&info));
    return info.estimatedTime;
  };
  const float small = simulate(1);
  const float large = simulate(values.size());
  EXPECT_GT(small, 0);
  EXPECT_GT(large, small);
  EXPECT_EQ(values[0], 3);
  ncclSimInfo_t bad{};
  must(ncclGroupStart());
  expect_refused(ncclInvalidArgument, "NCCL_SIM_INFO_INITIALIZER", ncclGroupSimulateEnd(&bad));
}

// ---- What hosts cannot mean ---------------------------------------------------------------------

TEST(Api, WhatServesGpusOnlyIsRefused) {
  const AllRanks all(2);
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  must(ncclCommQueryProperties(all[1], &properties));
  EXPECT_EQ(properties.rank, 1);
  EXPECT_EQ(properties.nRanks, 2);
  EXPECT_FALSE(properties.deviceApiSupport);
  EXPECT_TRUE(properties.hostRmaSupport);
  expect_refused(ncclInvalidUsage, "ncclDevCommCreate",
                 ncclDevCommCreate(all[0], nullptr, nullptr));
  const ncclTeam_t world = ncclTeamWorld(all[1]);
  EXPECT_EQ(world.nRanks, 2);
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(ncclTeamLsa(all[1]).nRanks, 1);
  EXPECT_EQ(ncclTeamRankToWorld(all[1], world, 0), 0);
  EXPECT_EQ(ncclTeamRankToWorld(all[1], ncclTeamLsa(all[1]), 0), 1);
  EXPECT_EQ(ncclTeamRankToLsa(all[1], world, 1), 0);
  EXPECT_EQ(ncclTeamWorld(nullptr).nRanks, 0);
  EXPECT_EQ(ncclLLA2ACalcSlots(3, 9), 6);
  std::uint64_t value = 1;
  must(ncclCommMemStats(all[0], ncclStatGpuMemTotal, &value));
  EXPECT_EQ(value, 0U);
}

TEST(Api, ASuspendedCommunicatorRests) {
  const AllRanks all(1);
  int value = 1;
  std::uint64_t suspended = 0;
  expect_refused(ncclInvalidUsage, "is not suspended", ncclCommResume(all[0]));
  expect_refused(ncclInvalidArgument, "NCCL_SUSPEND_MEM", ncclCommSuspend(all[0], 0));
  must(ncclCommSuspend(all[0], NCCL_SUSPEND_MEM));
  must(ncclCommMemStats(all[0], ncclStatGpuMemSuspended, &suspended));
  EXPECT_EQ(suspended, 1U);
  expect_refused(ncclInvalidUsage, "is suspended",
                 ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, all[0], nullptr));
  must(ncclCommResume(all[0]));
  must(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, all[0], nullptr));
}

TEST(Api, MemoryIsAllocatedRegisteredAndFreed) {
  const AllRanks all(1);
  void* memory = nullptr;
  must(ncclMemAlloc(&memory, 10000));
  EXPECT_EQ(static_cast<char*>(memory)[9999], 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % NCCL_WIN_REQUIRED_ALIGNMENT, 0U);
  void* handle = nullptr;
  must(ncclCommRegister(all[0], memory, 10000, &handle));
  must(ncclCommDeregister(all[0], handle));
  expect_refused(ncclInvalidArgument, "is no registration", ncclCommDeregister(all[0], handle));
  ncclWindow_t window = nullptr;
  must(ncclCommWindowRegister(all[0], memory, 10000, &window, NCCL_WIN_COLL_SYMMETRIC));
  void* back = nullptr;
  must(ncclWinGetUserPtr(all[0], window, &back));
  EXPECT_EQ(back, memory);
  must(ncclGetPeerDevicePointer(window, 16, 0, &back));
  EXPECT_EQ(back, static_cast<char*>(memory) + 16);
  must(ncclCommWindowDeregister(all[0], window));
  expect_refused(ncclInvalidArgument, "has been deregistered",
                 ncclWinGetUserPtr(all[0], window, &back));
  expect_refused(ncclInvalidArgument, "is not aligned",
                 ncclCommWindowRegister(all[0], static_cast<char*>(memory) + 8, 64, &window,
                                        NCCL_WIN_COLL_SYMMETRIC));
  must(ncclMemFree(memory));
  int local = 0;
  expect_refused(ncclInvalidArgument, "was not allocated by ncclMemAlloc", ncclMemFree(&local));
  expect_refused(ncclInvalidArgument, "size is 0", ncclMemAlloc(&memory, 0));
}

}  // namespace
}  // namespace ljtrain::accl::testing
