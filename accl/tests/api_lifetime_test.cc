// How communicators of the C interface are made from others, end, and what becomes of them when
// something goes wrong.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>

#include "api_ranks.h"

namespace ljtrain::accl::testing {

Footprint footprint() {
  Footprint found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    found.descriptors += entry.path().empty() ? 0 : 1;
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    found.threads += entry.path().empty() ? 0 : 1;
  }
  std::ifstream maps("/proc/self/maps");
  // Stacks and malloc's arenas come and go; shared memory must not.
  for (std::string line; std::getline(maps, line);) {
    found.mappings += line.find("memfd:") != std::string::npos ? 1 : 0;
  }
  return found;
}

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Polls until a non-blocking communicator has done what it was asked to.
ncclResult_t await(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  const auto deadline = Clock::now() + 30s;
  while (state == ncclInProgress && Clock::now() < deadline) {
    must(ncclCommGetAsyncError(comm, &state));
    std::this_thread::sleep_for(1ms);
  }
  return state;
}

void must_be_started(ncclResult_t result) {
  must_be(result == ncclInProgress || result == ncclSuccess, ncclGetLastError(nullptr));
}

int sum_over(ncclComm_t comm, int value) {
  int result = 0;
  must(ncclAllReduce(&value, &result, 1, ncclInt, ncclSum, comm, nullptr));
  return result;
}

std::pair<int, int> rank_and_size(ncclComm_t comm) {
  int rank = -1;
  int size = -1;
  must(ncclCommUserRank(comm, &rank));
  must(ncclCommCount(comm, &size));
  return {rank, size};
}

// Lets the ranks of a test (threads) go on together.
class Gate {
 public:
  explicit Gate(int ranks) : missing_(ranks) {}
  void arrive() {
    std::unique_lock lock(mutex_);
    --missing_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int missing_;
};

// ---- Non-blocking -------------------------------------------------------------------------------

TEST(ApiLifetime, NonBlockingCommunicatorsAreMadeInTheBackground) {
  const ncclUniqueId id = new_nccl_id();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::array<ncclComm_t, 2> comms{};
  // One after the other in one thread, without a group: only possible because neither waits.
  EXPECT_EQ(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), ncclInProgress);
  ncclResult_t state = ncclSuccess;
  must(ncclCommGetAsyncError(comms[0], &state));
  EXPECT_EQ(state, ncclInProgress);
  int count = 0;
  expect_refused(ncclInvalidArgument, "still being created", ncclCommCount(comms[0], &count));
  EXPECT_EQ(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config), ncclInProgress);
  std::array<int, 2> values = {1, 2};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(await(comms[rank]), ncclSuccess);
    EXPECT_EQ(
        ncclAllReduce(&values[rank], &values[rank], 1, ncclInt, ncclSum, comms[rank], nullptr),
        ncclInProgress);
  }
  std::array<ncclComm_t, 2> halves{};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(await(comms[rank]), ncclSuccess);
    EXPECT_EQ(values[rank], 3);
    must_be_started(ncclCommSplit(comms[rank], 0, 0, &halves[rank], nullptr));
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(await(comms[rank]), ncclSuccess);
    ASSERT_EQ(await(halves[rank]), ncclSuccess);
    EXPECT_EQ(rank_and_size(halves[rank]), std::pair(static_cast<int>(rank), 2));
    must_be_started(ncclCommFinalize(halves[rank]));
    EXPECT_EQ(await(halves[rank]), ncclSuccess);
    must(ncclCommDestroy(halves[rank]));
    must(ncclCommDestroy(comms[rank]));
  }
}

TEST(ApiLifetime, BlockingAndNonBlockingDoNotMixInAGroup) {
  const AllRanks all(1);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  must_be_started(ncclCommInitRankConfig(&comm, 1, new_nccl_id(), 0, &config));
  ASSERT_EQ(await(comm), ncclSuccess);
  int value = 1;
  must(ncclGroupStart());
  must(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, all[0], nullptr));
  expect_refused(ncclInvalidArgument, "blocking and non-blocking",
                 ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  must(ncclCommDestroy(comm));
}

TEST(ApiLifetime, AnAbortEndsACreationUnderWay) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, new_nccl_id(), 0, &config), ncclInProgress);
  std::this_thread::sleep_for(20ms);
  const auto start = Clock::now();
  must(ncclCommAbort(comm));
  EXPECT_LT(Clock::now() - start, 1s);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument);
}

TEST(ApiLifetime, AMissingRankIsNamed) {
  must(acclSetTimeout(0.3));
  ncclComm_t comm = nullptr;
  expect_refused(ncclRemoteError, "missing: 1-2", ncclCommInitRank(&comm, 3, new_nccl_id(), 0));
  EXPECT_EQ(comm, nullptr);
  must(acclSetTimeout(1800));
  expect_refused(ncclInvalidArgument, "more than 0", acclSetTimeout(0));
}

// ---- Split, shrink, grow ------------------------------------------------------------------------

TEST(ApiLifetime, SplitOrdersByColorAndKey) {
  for (const As how : {As::kThreads, As::kProcesses}) {
    expect_no_failure(run_api_ranks(how, 4, [](ncclComm_t comm, int rank) {
      for (int round = 0; round < 3; ++round) {
        ncclComm_t half = nullptr;
        must(ncclCommSplit(comm, rank % 2, -rank, &half, nullptr));
        must_be(rank_and_size(half) == std::pair(rank < 2 ? 1 : 0, 2), "wrong place in the split");
        must_be(sum_over(half, rank) == (rank % 2 == 0 ? 2 : 4), "wrong members in the split");
        ncclComm_t some = comm;
        must(ncclCommSplit(comm, rank == 3 ? NCCL_SPLIT_NOCOLOR : 7, 0, &some, nullptr));
        must_be((some == nullptr) == (rank == 3), "no color, no communicator");
        if (some != nullptr) {
          must_be(rank_and_size(some) == std::pair(rank, 3), "equal keys keep the order");
          must(ncclCommDestroy(some));
        }
        must(ncclCommDestroy(half));
      }
      must_be(sum_over(comm, 1) == 4, "the parent goes on");
    }));
  }
}

TEST(ApiLifetime, ManyAreSplitInOneGroup) {
  const AllRanks all(3);
  std::array<ncclComm_t, 3> parts{};
  must(ncclGroupStart());
  for (int rank = 0; rank < 3; ++rank) {
    must(ncclCommSplit(all[rank], rank == 0 ? 0 : 1, 0, &parts[static_cast<std::size_t>(rank)],
                       nullptr));
  }
  must(ncclGroupEnd());
  EXPECT_EQ(rank_and_size(parts[0]), std::pair(0, 1));
  EXPECT_EQ(rank_and_size(parts[2]), std::pair(1, 2));
  must(ncclGroupStart());
  for (ncclComm_t part : parts) {
    must(ncclCommDestroy(part));
  }
  must(ncclGroupEnd());
  int count = 0;
  EXPECT_EQ(ncclCommCount(parts[0], &count), ncclInvalidArgument);
  expect_refused(ncclInvalidArgument, "color is -3",
                 ncclCommSplit(all[0], -3, 0, parts.data(), nullptr));
}

TEST(ApiLifetime, ShrinkLeavesRanksOut) {
  expect_no_failure(run_api_ranks(As::kThreads, 3, [](ncclComm_t comm, int rank) {
    int excluded = 1;
    ncclComm_t rest = nullptr;
    if (rank != 1) {
      must(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT));
      must_be(rank_and_size(rest) == std::pair(rank / 2, 2), "wrong place after the shrink");
      must_be(sum_over(rest, rank) == 2, "wrong members after the shrink");
      must(ncclCommDestroy(rest));
    } else {
      must_be(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT) ==
                  ncclInvalidArgument,
              "an excluded rank could shrink");
      must_be(ncclCommShrink(comm, &excluded, 0, &rest, nullptr, NCCL_SHRINK_DEFAULT) ==
                  ncclInvalidArgument,
              "an empty list was taken");
    }
    must_be(sum_over(comm, 1) == 3, "the parent goes on");
  }));
}

TEST(ApiLifetime, SurvivorsOfADeathShrinkAndGoOn) {
  const auto failures = run_api_ranks(As::kProcesses, 3, [](ncclComm_t comm, int rank) {
    sum_over(comm, 1);
    if (rank == 1) {
      ::raise(SIGKILL);
    }
    int value = 1;
    const auto start = Clock::now();
    const ncclResult_t result = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr);
    must_be(result == ncclRemoteError, "the death of a rank went unnoticed");
    must_be(Clock::now() - start < 5s, "the death of a rank was noticed late");
    must_be(std::string(ncclGetLastError(comm)).find("rank 1") != std::string::npos,
            "the dead rank was not named");
    int dead = 1;
    ncclComm_t rest = nullptr;
    must(ncclCommShrink(comm, &dead, 1, &rest, nullptr, NCCL_SHRINK_ABORT));
    must_be(rank_and_size(rest) == std::pair(rank / 2, 2), "wrong place after the shrink");
    must_be(sum_over(rest, 5) == 10, "the survivors do not work");
    must(ncclCommDestroy(rest));
  });
  EXPECT_EQ(failures[0], "");
  EXPECT_EQ(failures[1], "signal 9");
  EXPECT_EQ(failures[2], "");
}

TEST(ApiLifetime, GrowTakesNewRanksIn) {
  const ncclUniqueId id = new_nccl_id();
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<ncclUniqueId> growth;
  expect_no_failure(run_in_threads(3, [&](int rank) {
    ncclComm_t comm = nullptr;
    ncclComm_t grown = nullptr;
    if (rank < 2) {
      must(ncclCommInitRank(&comm, 2, id, rank));
    }
    if (rank == 1) {
      ncclUniqueId made;
      must(ncclCommGetUniqueId(comm, &made));
      must_be(ncclCommGetUniqueId(comm, &made) == ncclInvalidUsage, "two ids at a time");
      const std::scoped_lock lock(mutex);
      growth = made;
      changed.notify_all();
      must_be(ncclCommGrow(comm, 2, &made, -1, &grown, nullptr) == ncclInvalidArgument,
              "grown to the size it has");
    }
    if (rank == 2 || rank == 1) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return growth.has_value(); });
    }
    must(
        ncclCommGrow(comm, 3, rank == 0 ? nullptr : &*growth, rank == 2 ? 2 : -1, &grown, nullptr));
    must_be(rank_and_size(grown) == std::pair(rank, 3), "wrong place after the growth");
    must_be(sum_over(grown, rank) == 3, "the grown communicator does not work");
    must(ncclCommDestroy(grown));
    must(ncclCommDestroy(comm));
  }));
}

TEST(ApiLifetime, SeveralIdsMakeOneCommunicator) {
  std::array<ncclUniqueId, 2> ids = {new_nccl_id(), new_nccl_id()};
  expect_no_failure(run_in_threads(2, [&](int rank) {
    ncclComm_t comm = nullptr;
    must(ncclCommInitRankScalable(&comm, 2, rank, 2, ids.data(), nullptr));
    must_be(sum_over(comm, 1) == 2, "it does not work");
    must(ncclCommDestroy(comm));
    must_be(ncclCommInitRankScalable(&comm, 2, rank, 3, ids.data(), nullptr) == ncclInvalidArgument,
            "more ids than ranks");
  }));
}

// ---- Ends ---------------------------------------------------------------------------------------

TEST(ApiLifetime, AnAbortEndsWhatOtherThreadsWaitFor) {
  Gate gate(2);
  const auto failures = run_in_threads(2, [&, id = new_nccl_id()](int rank) {
    ncclComm_t comm = nullptr;
    must(ncclCommInitRank(&comm, 2, id, rank));
    gate.arrive();
    if (rank == 1) {
      // The peer of the abort: it must hear of it, and say who it was.
      int value = 1;
      std::this_thread::sleep_for(400ms);
      must_be(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr) == ncclRemoteError,
              "the peer does not know");
      must_be(std::string(ncclGetLastError(comm)).find("by ncclCommAbort") != std::string::npos,
              ncclGetLastError(comm));
      must(ncclCommDestroy(comm));
      return;
    }
    ncclResult_t waiting = ncclSuccess;
    std::thread stuck([&] {
      int value = 1;
      waiting = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr);
    });
    std::this_thread::sleep_for(100ms);
    const auto start = Clock::now();
    must(ncclCommAbort(comm));
    const auto taken = Clock::now() - start;
    stuck.join();
    must_be(taken < 1s, "the abort took more than a second");
    must_be(waiting == ncclInvalidUsage, "the operation did not end with the abort");
  });
  expect_no_failure(failures);
}

TEST(ApiLifetime, AnAbortEndsWhatWaitsOnStreams) {
  Gate gate(2);
  expect_no_failure(run_in_threads(2, [&, id = new_nccl_id()](int rank) {
    ncclComm_t comm = nullptr;
    must(ncclCommInitRank(&comm, 2, id, rank));
    gate.arrive();
    cudaStream_t stream = nullptr;
    must(acclStreamCreate(&stream));
    if (rank == 0) {
      int values[3] = {};
      for (int& value : values) {
        must(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, stream));
      }
      std::this_thread::sleep_for(50ms);
      const auto start = Clock::now();
      must(ncclCommAbort(comm));
      must_be(acclStreamSynchronize(stream) == ncclInvalidUsage, "the stream saw no failure");
      must_be(Clock::now() - start < 1s, "the stream was held up");
    } else {
      std::this_thread::sleep_for(500ms);
      must(ncclCommAbort(comm));
    }
    must(acclStreamDestroy(stream));
  }));
}

TEST(ApiLifetime, ARevokedCommunicatorCanBeSplitAndShrunk) {
  Gate gate(3);
  expect_no_failure(run_in_threads(3, [&, id = new_nccl_id()](int rank) {
    ncclComm_t comm = nullptr;
    must(ncclCommInitRank(&comm, 3, id, rank));
    gate.arrive();
    must_be(ncclCommRevoke(comm, 1) == ncclInvalidArgument, "a flag without a meaning was taken");
    must(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    ncclResult_t state = ncclInternalError;
    must(ncclCommGetAsyncError(comm, &state));
    must_be(state == ncclSuccess, "a revoked communicator is quiet, not failed");
    int value = 1;
    must_be(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr) == ncclInvalidUsage,
            "an operation on a revoked communicator");
    must_be(ncclCommFinalize(comm) == ncclInvalidUsage, "a revoked communicator was finalized");
    ncclComm_t again = nullptr;
    must(ncclCommSplit(comm, 0, -rank, &again, nullptr));
    must_be(rank_and_size(again) == std::pair(2 - rank, 3), "wrong place in the split");
    must_be(sum_over(again, 1) == 3, "the split does not work");
    must(ncclCommDestroy(again));
    int excluded = 0;
    if (rank != 0) {
      must(ncclCommShrink(comm, &excluded, 1, &again, nullptr, NCCL_SHRINK_DEFAULT));
      must_be(sum_over(again, 1) == 2, "the shrunk one does not work");
      must(ncclCommDestroy(again));
    }
    must(ncclCommDestroy(comm));
  }));
}

TEST(ApiLifetime, AFinalizedCommunicatorHasFlushed) {
  const AllRanks all(2);
  std::array<cudaStream_t, 2> streams{};
  std::array<int, 2> values = {1, 2};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    must(acclStreamCreate(&streams[rank]));
    must(ncclAllReduce(&values[rank], &values[rank], 1, ncclInt, ncclSum,
                       all[static_cast<int>(rank)], streams[rank]));
  }
  for (int rank = 0; rank < 2; ++rank) {
    must(ncclCommFinalize(all[rank]));
    EXPECT_EQ(values[static_cast<std::size_t>(rank)], 3);
    expect_refused(
        ncclInvalidArgument, "has been finalized",
        ncclAllReduce(values.data(), values.data(), 1, ncclInt, ncclSum, all[rank], nullptr));
    expect_refused(ncclInvalidArgument, "has been finalized", ncclCommFinalize(all[rank]));
    must(acclStreamDestroy(streams[static_cast<std::size_t>(rank)]));
  }
}

// A data loader's worker: what it inherits is of no use to it, and hurts nobody.
TEST(ApiLifetime, AForkedChildIsRefused) {
  expect_no_failure(run_api_ranks(As::kProcesses, 2, [](ncclComm_t comm, int) {
    cudaStream_t stream = nullptr;
    must(acclStreamCreate(&stream));
    const int one = 1;
    int sum = 0;  // outlives what the stream does
    must(ncclAllReduce(&one, &sum, 1, ncclInt, ncclSum, comm, stream));
    must(acclStreamSynchronize(stream));
    must_be(sum == 2, "wrong sum on a stream");
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      int value = 1;
      ncclComm_t own = nullptr;
      const bool is_refused =
          ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr) == ncclInvalidUsage &&
          ncclCommDestroy(comm) == ncclInvalidUsage && ncclCommAbort(comm) == ncclInvalidUsage &&
          acclStreamSynchronize(stream) == ncclInvalidUsage;
      const bool has_own = ncclCommInitRank(&own, 1, new_nccl_id(), 0) == ncclSuccess &&
                           sum_over(own, 4) == 4 && ncclCommDestroy(own) == ncclSuccess;
      std::exit(is_refused && has_own ? 0 : 1);  // with the destructors of everything static
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    must_be(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child was not refused");
    must_be(sum_over(comm, 1) == 2, "the parent's communicator suffered");
    must(acclStreamDestroy(stream));
  }));
}

void make_use_and_destroy() {
  const AllRanks all(2);
  std::array<ncclComm_t, 2> halves{};
  std::array<cudaStream_t, 2> streams{};
  must(ncclGroupStart());
  for (std::size_t rank = 0; rank < 2; ++rank) {
    must(ncclCommSplit(all[static_cast<int>(rank)], 0, 0, &halves[rank], nullptr));
  }
  must(ncclGroupEnd());
  std::array<int, 2> values = {1, 2};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    must(acclStreamCreate(&streams[rank]));
    must(ncclAllReduce(&values[rank], &values[rank], 1, ncclInt, ncclSum, halves[rank],
                       streams[rank]));
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    must(acclStreamSynchronize(streams[rank]));
    must(acclStreamDestroy(streams[rank]));
    must(rank == 0 ? ncclCommDestroy(halves[rank]) : ncclCommAbort(halves[rank]));
  }
}

// 50 of them, or as many as ACCL_TEST_COMMUNICATORS says (the slow run: 1,000).
TEST(ApiLifetime, NothingIsLeftBehind) {
  const char* text = std::getenv("ACCL_TEST_COMMUNICATORS");
  const int communicators = text == nullptr ? 50 : static_cast<int>(std::strtol(text, nullptr, 10));
  make_use_and_destroy();  // what is made once and kept
  const Footprint before = footprint();
  for (int made = 0; made < communicators; made += 4) {
    make_use_and_destroy();
  }
  const Footprint after = footprint();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(after.mappings, before.mappings);
}

}  // namespace
}  // namespace ljtrain::accl::testing
