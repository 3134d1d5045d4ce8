// Running the ranks of a communicator, as threads of the test or as processes of their own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "accl/communicator.h"

namespace ljtrain::accl::testing {

using RankBody = std::function<void(Communicator&)>;

// Runs `body(rank)` in `ranks` threads; what they threw, by rank ("" for nothing).
inline std::vector<std::string> run_in_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& failure) {
        failures[static_cast<std::size_t>(rank)] = failure.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return failures;
}

// The same in child processes. A child that a signal ended has the failure "signal N".
inline std::vector<std::string> run_in_processes(int ranks, const std::function<void(int)>& body) {
  struct Child {
    pid_t pid = 0;
    int pipe = -1;
  };
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) {
      throw std::runtime_error("pipe");
    }
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      std::string failure;
      try {
        body(rank);
      } catch (const std::exception& thrown) {
        failure = thrown.what();
      }
      const ssize_t written = ::write(ends[1], failure.data(), failure.size());
      ::_exit(std::cmp_equal(written, failure.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  std::vector<std::string> failures;
  for (const Child& child : children) {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(child.pipe, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<std::size_t>(n));
    }
    ::close(child.pipe);
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    failures.push_back(WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status)) : text);
  }
  return failures;
}

enum class As { kThreads, kProcesses };

// Makes a communicator of `ranks` ranks and runs the body on each.
inline std::vector<std::string> run_ranks(As how, int ranks, const RankBody& body,
                                          CommunicatorOptions options = {}) {
  const UniqueId id = new_unique_id();
  if (!options.timeout) {
    options.timeout = std::chrono::seconds(60);
  }
  const auto run = [&](int rank) { body(*Communicator::create(id, rank, ranks, options)); };
  return how == As::kThreads ? run_in_threads(ranks, run) : run_in_processes(ranks, run);
}

inline void expect_no_failure(const std::vector<std::string>& failures) {
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    EXPECT_EQ(failures[rank], "") << "rank " << rank;
  }
}

}  // namespace ljtrain::accl::testing
