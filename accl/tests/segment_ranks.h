// Runs ranks over a segment made by the test, as threads or as forked processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "communicator/peer_process.h"
#include "communicator/waiting.h"
#include "transport/shared_memory/segment.h"

namespace ljtrain::accl::test {

inline constexpr std::size_t kChannelBytes = std::size_t{64} << 10;

struct Rank {
  shared_memory::Segment& segment;
  Waiting& waiting;
  int rank;
  int ranks;
};
using RankFunction = std::function<void(const Rank&)>;

inline shared_memory::Segment make_segment(int ranks, std::size_t channel_bytes = kChannelBytes) {
  auto segment = shared_memory::Segment::create(ranks, 4096, channel_bytes);
  segment.header().tuning.oversubscribed =
      static_cast<unsigned>(ranks) > std::thread::hardware_concurrency() ? 1 : 0;
  return segment;
}

inline void join(shared_memory::Segment& segment, int rank) {
  auto& control = segment.control(rank);
  control.pid = ::getpid();
  control.process_start_time = process_start_time(control.pid);
  control.state.store(shared_memory::RankState::kJoined);
}

// Runs `function` on one rank; what it throws is a failure of the test.
inline void run_rank(shared_memory::Segment& segment, int rank, int ranks,
                     const RankFunction& function) {
  try {
    Waiting waiting(segment, rank, ranks);
    function({segment, waiting, rank, ranks});
  } catch (const std::exception& failure) {
    ADD_FAILURE() << "rank " << rank << " threw: " << failure.what();
  }
}

inline void run_threads(shared_memory::Segment& segment, int ranks, const RankFunction& function) {
  for (int rank = 0; rank < ranks; ++rank) {
    join(segment, rank);
  }
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { run_rank(segment, rank, ranks, function); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

inline void run_threads(int ranks, const RankFunction& function) {
  auto segment = make_segment(ranks);
  run_threads(segment, ranks, function);
}

// Returns what each process ended with (its exit status, or minus the signal). A rank that fails
// exits with 1.
inline std::vector<int> run_processes(shared_memory::Segment& segment, int ranks,
                                      const RankFunction& function) {
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      join(segment, rank);
      for (int peer = 0; peer < ranks; ++peer) {
        while (segment.control(peer).state.load() == shared_memory::RankState::kAbsent) {
          std::this_thread::yield();
        }
      }
      run_rank(segment, rank, ranks, function);
      std::fflush(nullptr);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return ends;
}

inline void run_processes(int ranks, const RankFunction& function) {
  auto segment = make_segment(ranks);
  EXPECT_EQ(run_processes(segment, ranks, function),
            std::vector<int>(static_cast<std::size_t>(ranks), 0));
}

}  // namespace ljtrain::accl::test
