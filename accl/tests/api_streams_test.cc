// Host streams and the order of what runs on them.
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "api_ranks.h"

namespace ljtrain::accl::testing {
namespace {

using namespace std::chrono_literals;

class Stream {
 public:
  Stream() { must(acclStreamCreate(&stream_)); }
  ~Stream() { acclStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void synchronize() const { must(acclStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

void wait_for(void* flag) {
  while (!static_cast<std::atomic<bool>*>(flag)->load()) {
    std::this_thread::sleep_for(1ms);
  }
}

TEST(ApiStreams, OperationsReturnAtOnceAndRunLater) {
  const AllRanks all(1);
  const Stream stream;
  std::atomic<bool> go{false};
  const int from = 7;
  int to = 0;
  must(acclStreamEnqueue(stream.get(), wait_for, &go));
  must(ncclAllReduce(&from, &to, 1, ncclInt, ncclSum, all[0], stream.get()));
  EXPECT_EQ(acclStreamQuery(stream.get()), ncclInProgress);
  EXPECT_EQ(to, 0);
  go = true;
  stream.synchronize();
  EXPECT_EQ(to, 7);
  EXPECT_EQ(acclStreamQuery(stream.get()), ncclSuccess);
}

TEST(ApiStreams, ACommunicatorKeepsTheOrderOfIssueAcrossStreams) {
  const AllRanks all(1);
  const Stream slow;
  const Stream quick;
  std::atomic<bool> go{false};
  const std::array<int, 2> from = {1, 2};
  int to = 0;
  must(acclStreamEnqueue(slow.get(), wait_for, &go));
  must(ncclAllReduce(&from[0], &to, 1, ncclInt, ncclSum, all[0], slow.get()));
  must(ncclAllReduce(&from[1], &to, 1, ncclInt, ncclSum, all[0], quick.get()));
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(to, 0) << "the second operation overtook the first";
  go = true;
  quick.synchronize();
  EXPECT_EQ(to, 2);
  slow.synchronize();
}

TEST(ApiStreams, RanksInOneThreadMeetWithoutAGroup) {
  const AllRanks all(2);
  const std::array<Stream, 2> streams;
  std::array<int, 2> values = {1, 2};
  for (int rank = 0; rank < 2; ++rank) {
    int& value = values[static_cast<std::size_t>(rank)];
    must(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, all[rank],
                       streams[static_cast<std::size_t>(rank)].get()));
  }
  for (const Stream& stream : streams) {
    stream.synchronize();
  }
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], 3);
}

// A group over several communicators on one stream: they meet, and the stream goes on after the
// last.
TEST(ApiStreams, AGroupOnOneStreamIsOneStep) {
  const AllRanks all(3);
  const Stream stream;
  std::array<int, 3> values = {1, 2, 3};
  for (int round = 0; round < 10; ++round) {
    must(ncclGroupStart());
    for (int rank = 0; rank < 3; ++rank) {
      int& value = values[static_cast<std::size_t>(rank)];
      must(ncclAllReduce(&value, &value, 1, ncclInt, ncclMax, all[rank], stream.get()));
    }
    must(ncclGroupEnd());
    must(acclStreamEnqueue(
        stream.get(),
        [](void* data) {
          auto& seen = *static_cast<std::array<int, 3>*>(data);
          EXPECT_EQ(seen[0], seen[1]);
          EXPECT_EQ(seen[0], seen[2]);
          seen[1] += 1;
        },
        &values));
  }
  stream.synchronize();
  EXPECT_EQ(values[1], 13);
}

TEST(ApiStreams, AGroupOverSeveralStreamsHoldsThemAll) {
  const AllRanks all(1);
  const std::array<Stream, 2> streams;
  std::atomic<bool> go{false};
  const std::array<int, 3> from = {1, 2, 3};
  std::array<int, 3> to{};
  must(acclStreamEnqueue(streams[1].get(), wait_for, &go));
  std::thread opener([&] {
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(to, (std::array<int, 3>{})) << "the second stream has not got there yet";
    go = true;
  });
  must(ncclGroupStart());
  must(ncclAllReduce(&from[0], &to[0], 1, ncclInt, ncclSum, all[0], streams[0].get()));
  must(ncclAllReduce(&from[1], &to[1], 1, ncclInt, ncclSum, all[0], streams[1].get()));
  must(ncclAllReduce(&from[2], &to[2], 1, ncclInt, ncclSum, all[0], nullptr));
  must(ncclGroupEnd());
  EXPECT_EQ(to, from) << "one of them has no stream, so the end of the group waits";
  opener.join();
}

// Two threads issue on the same two streams in opposite order: nobody may wait for somebody who
// waits for him.
TEST(ApiStreams, CrossingThreadsDoNotLock) {
  const AllRanks first(1);
  const AllRanks second(1);
  const std::array<Stream, 2> streams;
  std::vector<std::thread> threads;
  for (int who = 0; who < 2; ++who) {
    threads.emplace_back([&, who] {
      int value = 0;
      for (int round = 0; round < 200; ++round) {
        for (int step = 0; step < 2; ++step) {
          const Stream& stream = streams[static_cast<std::size_t>((who + step) % 2)];
          must(ncclAllReduce(&value, &value, 1, ncclInt, ncclMax, first[0], stream.get()));
          must(ncclAllReduce(&value, &value, 1, ncclInt, ncclMax, second[0], stream.get()));
        }
      }
      for (const Stream& stream : streams) {
        stream.synchronize();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(ApiStreams, FailuresComeOutAtSynchronizeAndInTheState) {
  const auto failures = run_api_ranks(As::kThreads, 2, [](ncclComm_t comm, int rank) {
    const Stream stream;
    std::array<float, 4> data{};
    const std::size_t count = rank == 0 ? 4 : 3;
    must(ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclSum, comm, stream.get()));
    must_be(acclStreamSynchronize(stream.get()) == ncclInvalidUsage, "synchronize saw no failure");
    must_be(std::string(ncclGetLastError(nullptr)).find("all_reduce") != std::string::npos,
            "no sentence");
    must(acclStreamSynchronize(stream.get()));
    ncclResult_t state = ncclSuccess;
    must(ncclCommGetAsyncError(comm, &state));
    must_be(state == ncclInvalidUsage, "the state is not the failure");
    must_be(std::string(ncclGetLastError(comm)).find("all_reduce") != std::string::npos,
            "no sentence of the communicator");
  });
  expect_no_failure(failures);
}

TEST(ApiStreams, HandlesAreChecked) {
  cudaStream_t stream = nullptr;
  must(acclStreamCreate(&stream));
  must(acclStreamDestroy(stream));
  expect_refused(ncclInvalidArgument, "has been destroyed", acclStreamSynchronize(stream));
  expect_refused(ncclInvalidArgument, "has been destroyed", acclStreamDestroy(stream));
  expect_refused(ncclInvalidArgument, "stream is NULL", acclStreamSynchronize(nullptr));
  expect_refused(ncclInvalidArgument, "stream is NULL", acclStreamCreate(nullptr));
}

}  // namespace
}  // namespace ljtrain::accl::testing
