// Send, receive, put and signal through the C interface.
#include <array>
#include <numeric>

#include "api_ranks.h"

namespace ljtrain::accl::testing {
namespace {

class ApiMessages : public ::testing::TestWithParam<As> {};

// Everybody sends to everybody, itself included, in one group: sizes that fit no buffer in between.
TEST_P(ApiMessages, EverybodyTalksToEverybodyInAGroup) {
  expect_no_failure(run_api_ranks(GetParam(), 3, [](ncclComm_t comm, int rank) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{600000}}) {
      std::vector<std::vector<int>> from(3, std::vector<int>(count, rank));
      std::vector<std::vector<int>> to(3, std::vector<int>(count, -1));
      must(ncclGroupStart());
      for (int peer = 0; peer < 3; ++peer) {
        const auto at = static_cast<std::size_t>(peer);
        must(ncclSend(from[at].data(), count, ncclInt, peer, comm, nullptr));
        must(ncclRecv(to[at].data(), count, ncclInt, peer, comm, nullptr));
      }
      must(ncclGroupEnd());
      for (int peer = 0; peer < 3; ++peer) {
        must_be(to[static_cast<std::size_t>(peer)] == std::vector<int>(count, peer),
                "a message is wrong");
      }
    }
  }));
}

TEST_P(ApiMessages, MessagesAndCollectivesShareAGroup) {
  expect_no_failure(run_api_ranks(GetParam(), 2, [](ncclComm_t comm, int rank) {
    int sum = rank + 1;
    int own = rank;
    int other = -1;
    must(ncclGroupStart());
    must(ncclAllReduce(&sum, &sum, 1, ncclInt, ncclSum, comm, nullptr));
    must(ncclRecv(&other, 1, ncclInt, 1 - rank, comm, nullptr));
    must(ncclSend(&own, 1, ncclInt, 1 - rank, comm, nullptr));
    must(ncclGroupEnd());
    must_be(sum == 3 && other == 1 - rank, "wrong values");
  }));
}

TEST_P(ApiMessages, PutsArriveBeforeTheirSignals) {
  constexpr std::size_t kCount = 50000;
  expect_no_failure(run_api_ranks(GetParam(), 3, [](ncclComm_t comm, int rank) {
    void* memory = nullptr;
    must(ncclMemAlloc(&memory, 3 * kCount * sizeof(int)));
    auto* values = static_cast<int*>(memory);
    ncclWindow_t window = nullptr;
    must(ncclCommWindowRegister(comm, memory, 3 * kCount * sizeof(int), &window,
                                NCCL_WIN_COLL_SYMMETRIC));
    for (int round = 1; round <= 3; ++round) {
      std::vector<int> mine(kCount, 10 * round + rank);
      // To everybody, itself included; then wait for everybody.
      std::vector<ncclWaitSignalDesc_t> wanted;
      for (int peer = 0; peer < 3; ++peer) {
        must(ncclPutSignal(mine.data(), kCount, ncclInt, peer, window,
                           static_cast<std::size_t>(rank) * kCount * sizeof(int), 0, 0, 0, comm,
                           nullptr));
        wanted.push_back({1, peer, 0, 0});
      }
      must(ncclWaitSignal(3, wanted.data(), comm, nullptr));
      for (int peer = 0; peer < 3; ++peer) {
        const int* part = values + static_cast<std::size_t>(peer) * kCount;
        must_be(part[0] == 10 * round + peer && part[kCount - 1] == 10 * round + peer,
                "a put is wrong");
      }
      int barrier = 0;  // nobody puts again before everybody has looked
      must(ncclAllReduce(&barrier, &barrier, 1, ncclInt, ncclSum, comm, nullptr));
    }
    must_be(ncclPutSignal(values, kCount, ncclInt, 0, window, 3 * kCount * sizeof(int), 0, 0, 0,
                          comm, nullptr) == ncclInvalidArgument,
            "a put beyond the window");
    must(ncclCommWindowDeregister(comm, window));
    must(ncclMemFree(memory));
  }));
}

TEST_P(ApiMessages, SignalsAreCountedByPeerIndexAndContext) {
  expect_no_failure(run_api_ranks(GetParam(), 2, [](ncclComm_t comm, int rank) {
    const int peer = 1 - rank;
    for (int i = 0; i < 3; ++i) {
      must(ncclSignal(peer, 4, 1, 0, comm, nullptr));
    }
    must(ncclSignal(peer, 5, 0, 0, comm, nullptr));
    std::array<ncclWaitSignalDesc_t, 2> wanted = {{{1, peer, 5, 0}, {3, peer, 4, 1}}};
    must(ncclWaitSignal(2, wanted.data(), comm, nullptr));
    ncclWaitSignalDesc_t none{0, peer, 5, 0};
    must_be(ncclWaitSignal(1, &none, comm, nullptr) == ncclInvalidArgument, "a wait for nothing");
    must_be(ncclSignal(peer, -1, 0, 0, comm, nullptr) == ncclInvalidArgument, "signal -1");
  }));
}

INSTANTIATE_TEST_SUITE_P(How, ApiMessages, ::testing::Values(As::kThreads, As::kProcesses),
                         [](const auto& parameters) {
                           return parameters.param == As::kThreads ? "Threads" : "Processes";
                         });

}  // namespace
}  // namespace ljtrain::accl::testing
