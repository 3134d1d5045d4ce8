// What goes wrong: ranks that disagree, do not come, stop, die, abort, fork. Every rank must hear
// of it, soon, and by name.
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "accl/communicator.h"
#include "ranks.h"

namespace ljtrain::accl {
namespace {

using namespace std::chrono_literals;
using testing::As;
using Clock = std::chrono::steady_clock;

Collective all_reduce(float* data, std::size_t count) {
  Collective call;
  call.kind = OperationKind::kAllReduce;
  call.send = call.recv = data;
  call.count = count;
  call.type = DataType::kFloat32;
  return call;
}

CommunicatorOptions within(std::chrono::nanoseconds timeout) {
  CommunicatorOptions options;
  options.timeout = timeout;
  return options;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class BothWays : public ::testing::TestWithParam<As> {};
INSTANTIATE_TEST_SUITE_P(Ranks, BothWays, ::testing::Values(As::kThreads, As::kProcesses),
                         [](const auto& entry) {
                           return entry.param == As::kThreads ? "Threads" : "Processes";
                         });

// ---- disagreement ----

TEST_P(BothWays, DisagreementNamesWhoCalledWhat) {
  struct Difference {
    const char* what;
    void (*change)(Collective&);
    const char* odd_one;
  };
  const Difference differences[] = {
      {"count", [](Collective& call) { call.count /= 2; }, "all_reduce of 500 float32, sum"},
      {"type", [](Collective& call) { call.type = DataType::kInt32; },
       "all_reduce of 1000 int32, sum"},
      {"operator", [](Collective& call) { call.op = ReduceOp::kMax; },
       "all_reduce of 1000 float32, max"},
      {"operation", [](Collective& call) { call.kind = OperationKind::kReduce; },
       "reduce of 1000 float32, sum, root 0"},
      {"barrier", [](Collective& call) { call = {}; }, "barrier"},
  };
  for (const auto& difference : differences) {
    for (const std::size_t size : {1UL, 1000UL}) {  // one step and staged
      const auto failures = testing::run_ranks(GetParam(), 3, [&](Communicator& communicator) {
        std::vector<float> data(1000 * size);
        Collective call = all_reduce(data.data(), 1000);
        communicator.run(call);
        if (communicator.rank() == 1) {
          difference.change(call);
        }
        call.count *= size;
        communicator.run(call);
      });
      for (int rank = 0; rank < 3; ++rank) {
        const std::string& text = failures[static_cast<std::size_t>(rank)];
        EXPECT_TRUE(contains(text, "disagree on collective #2")) << difference.what << ": " << text;
        EXPECT_TRUE(contains(text, "rank 1 calls")) << text;
        if (size == 1) {
          EXPECT_TRUE(contains(text, difference.odd_one)) << text;
        }
      }
    }
  }
}

TEST_P(BothWays, DifferentRootsAndShares) {
  auto failures = testing::run_ranks(GetParam(), 2, [](Communicator& communicator) {
    float value = 0;
    Collective call = all_reduce(&value, 1);
    call.kind = OperationKind::kBroadcast;
    call.root = communicator.rank();
    communicator.run(call);
  });
  for (const auto& text : failures) {
    EXPECT_TRUE(contains(text, "rank 0 calls broadcast of 1 float32, root 0")) << text;
    EXPECT_TRUE(contains(text, "rank 1 calls broadcast of 1 float32, root 1")) << text;
  }
  failures = testing::run_ranks(GetParam(), 2, [](Communicator& communicator) {
    std::vector<float> data(64);
    const std::vector<Part> parts{{data.data(), 3},
                                  {data.data() + 8, communicator.rank() == 0 ? 5U : 4U}};
    Collective call;
    call.kind = OperationKind::kAllGather;
    call.type = DataType::kFloat32;
    call.send = data.data() + 32;
    call.count = parts[static_cast<std::size_t>(communicator.rank())].count;
    call.recv_parts = parts;
    communicator.run(call);
  });
  for (const auto& text : failures) {
    EXPECT_TRUE(contains(text, "different shares")) << text;
  }
  failures = testing::run_ranks(GetParam(), 3, [](Communicator& communicator) {
    std::vector<float> data(64);
    std::vector<Part> send(3, Part{data.data(), 2});
    std::vector<Part> recv(3, Part{data.data() + 32, 2});
    if (communicator.rank() == 2) {
      send[1].count = 7;
    }
    Collective call;
    call.kind = OperationKind::kAllToAll;
    call.type = DataType::kFloat32;
    call.send_parts = send;
    call.recv_parts = recv;
    communicator.run(call);
  });
  for (const auto& text : failures) {
    EXPECT_TRUE(contains(text, "rank 2 sends 7 elements to rank 1, which expects 2")) << text;
  }
}

TEST_P(BothWays, AllToAllOfUnequalCountsSaysWhichPair) {
  const auto failures = testing::run_ranks(GetParam(), 2, [](Communicator& communicator) {
    std::vector<float> data(64);
    Collective call;
    call.kind = OperationKind::kAllToAll;
    call.type = DataType::kFloat32;
    call.send = data.data();
    call.recv = data.data() + 32;
    call.count = communicator.rank() == 0 ? 3 : 5;
    communicator.run(call);
  });
  for (const auto& text : failures) {
    EXPECT_TRUE(contains(text, "sends 3 elements") || contains(text, "sends 5 elements")) << text;
  }
}

TEST_P(BothWays, ABrokenCommunicatorStaysBroken) {
  const auto failures = testing::run_ranks(GetParam(), 2, [](Communicator& communicator) {
    float value = 0;
    std::string first;
    try {
      communicator.run(all_reduce(&value, communicator.rank() == 0 ? 1 : 0));
    } catch (const Error& failure) {
      first = failure.what();
    }
    try {
      communicator.run(all_reduce(&value, 1));
    } catch (const Error& failure) {
      throw std::runtime_error(first == failure.what() ? "same"
                                                       : "another: " + std::string(failure.what()));
    }
  });
  EXPECT_EQ(failures, (std::vector<std::string>{"same", "same"}));
}

TEST_P(BothWays, BadArgumentsLeaveItWhole) {
  testing::expect_no_failure(testing::run_ranks(GetParam(), 2, [](Communicator& communicator) {
    float value = 1;
    Collective bad = all_reduce(nullptr, 1);
    EXPECT_THROW(communicator.run(bad), Error);
    bad = all_reduce(&value, SIZE_MAX / 2);
    EXPECT_THROW(communicator.run(bad), Error);
    bad = all_reduce(&value, 1);
    bad.kind = OperationKind::kBroadcast;
    bad.root = 2;
    EXPECT_THROW(communicator.run(bad), Error);
    communicator.run(all_reduce(&value, 1));
    if (value != 2) {
      throw std::runtime_error("wrong sum");
    }
  }));
}

// ---- deadlines ----

TEST_P(BothWays, ADeadlineNamesWhoIsMissing) {
  const auto failures = testing::run_ranks(GetParam(), 3, [](Communicator& communicator) {
    float value = 0;
    communicator.run(all_reduce(&value, 1));
    if (communicator.rank() == 1) {
      // Comes too late: it must hear of it too.
      std::this_thread::sleep_for(700ms);
    }
    Collective call = all_reduce(&value, 1);
    call.timeout = 300ms;
    const auto start = Clock::now();
    try {
      communicator.run(call);
    } catch (const Error& failure) {
      EXPECT_EQ(failure.code(), ErrorCode::kTimeout);
      EXPECT_EQ(failure.ranks(), std::vector<int>{1});
      EXPECT_LT(Clock::now() - start, 1s);
      throw;
    }
  });
  for (const auto& text : failures) {
    EXPECT_TRUE(contains(text, "rank 1 (")) << text;
    EXPECT_TRUE(
        contains(text, "has not entered it, its last was #1 (all_reduce of 1 float32, sum)"))
        << text;
  }
}

TEST(Faults, AStoppedRankIsNamedAsStopped) {
  const UniqueId id = new_unique_id();
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      auto communicator = Communicator::create(id, 1, 2);
      float value = 0;
      communicator->run(all_reduce(&value, 1));
      ::raise(SIGSTOP);
      ::pause();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  auto communicator = Communicator::create(id, 0, 2);
  float value = 0;
  communicator->run(all_reduce(&value, 1));
  Collective call = all_reduce(&value, 1);
  call.timeout = 500ms;
  try {
    communicator->run(call);
    ADD_FAILURE() << "no error";
  } catch (const Error& failure) {
    EXPECT_TRUE(contains(failure.what(), "stopped by a signal")) << failure.what();
    EXPECT_TRUE(contains(failure.what(), std::to_string(child))) << failure.what();
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(Faults, ADeadRankIsKnownWithinASecond) {
  for (const int moment : {0, 1}) {  // idle, and in the middle of large all_reduces
    const UniqueId id = new_unique_id();
    std::vector<pid_t> children;
    for (int rank = 1; rank < 3; ++rank) {
      children.push_back(::fork());
      if (children.back() == 0) {
        int code = 0;
        try {
          auto communicator = Communicator::create(id, rank, 3);
          std::vector<float> data(4 << 20);
          for (;;) {
            communicator->run(all_reduce(data.data(), data.size()));
          }
        } catch (const Error& failure) {
          code = contains(failure.what(), "has died") ? 0 : 2;
        } catch (...) {
          code = 1;
        }
        ::_exit(code);
      }
    }
    auto communicator = Communicator::create(id, 0, 3);
    std::vector<float> data(4 << 20);
    if (moment == 1) {
      communicator->run(all_reduce(data.data(), data.size()));
    }
    std::thread killer([&] {
      std::this_thread::sleep_for(100ms);
      ::kill(children[1], SIGKILL);
    });
    std::atomic<Clock::rep> seen{0};
    const auto start = Clock::now();
    try {
      if (moment == 0) {
        // Nothing under way here: asked, it knows.
        while (!communicator->async_error() && Clock::now() - start < 5s) {
          std::this_thread::sleep_for(10ms);
        }
        throw *communicator->async_error();
      }
      for (;;) {
        communicator->run(all_reduce(data.data(), data.size()));
      }
    } catch (const Error& failure) {
      seen = (Clock::now() - start).count();
      EXPECT_TRUE(contains(failure.what(), "rank 2")) << failure.what();
      EXPECT_TRUE(contains(failure.what(), "has died")) << failure.what();
      EXPECT_EQ(failure.code(), ErrorCode::kRemote);
    }
    EXPECT_LT(Clock::duration(seen.load()), 1100ms);
    killer.join();
    int status = 0;
    ::waitpid(children[0], &status, 0);
    EXPECT_EQ(status, 0) << "the other survivor did not hear of it";
    ::waitpid(children[1], nullptr, 0);
  }
}

// A rank that has finished all its collectives may exit while others are still in the last one.
TEST(Faults, LeavingAfterTheLastCollectiveHarmsNobody) {
  for (int round = 0; round < 20; ++round) {
    testing::expect_no_failure(
        testing::run_ranks(As::kProcesses, 4, [](Communicator& communicator) {
          std::vector<float> data(300'000, 1);
          communicator.run(all_reduce(data.data(), data.size()));
          if (data[77] != 4) {
            throw std::runtime_error("wrong sum");
          }
        }));
  }
}

// ---- abort ----

TEST(Faults, AbortEndsAnyOperationWithinASecond) {
  testing::expect_no_failure(testing::run_in_threads(3, [id = new_unique_id()](int rank) {
    auto communicator = Communicator::create(id, rank, 3);
    std::vector<float> data(1 << 20);
    communicator->run(all_reduce(data.data(), data.size()));
    std::thread aborter;
    if (rank == 1) {
      aborter = std::thread([&] {
        std::this_thread::sleep_for(200ms);
        communicator->abort("enough");
        communicator->abort("enough");
      });
    }
    const auto start = Clock::now();
    std::string text;
    try {
      // Ranks 0 and 1 wait for rank 2, which never comes.
      if (rank != 2) {
        communicator->run(all_reduce(data.data(), data.size()));
      } else {
        while (!communicator->async_error()) {
          std::this_thread::sleep_for(5ms);
        }
        text = communicator->async_error()->what();
      }
    } catch (const Error& failure) {
      text = failure.what();
    }
    EXPECT_LT(Clock::now() - start, 1200ms);
    EXPECT_TRUE(contains(text, "enough")) << text;
    if (rank != 1) {
      EXPECT_TRUE(contains(text, "rank 1 aborted")) << text;
    }
    if (aborter.joinable()) {
      aborter.join();
    }
  }));
}

// ---- creation ----

TEST(Faults, CreationNamesWhoDidNotCome) {
  const auto failures = testing::run_in_threads(3, [id = new_unique_id()](int rank) {
    CommunicatorOptions options;
    options.timeout = 400ms;
    const auto start = Clock::now();
    try {
      // Ranks 0, 1 and 3 of 5.
      Communicator::create(id, rank == 2 ? 3 : rank, 5, options);
    } catch (const Error& failure) {
      EXPECT_EQ(failure.ranks(), (std::vector<int>{2, 4}));
      EXPECT_LT(Clock::now() - start, 3s);
      throw;
    }
  });
  for (const auto& text : failures) {
    EXPECT_TRUE(contains(text, "3 of 5 ranks came, missing: 2,4")) << text;
  }
}

TEST(Faults, CreationNoticesDisagreement) {
  auto failures = testing::run_in_threads(2, [id = new_unique_id()](int rank) {
    Communicator::create(id, rank, rank == 0 ? 2 : 3, within(2s));
  });
  for (const auto& text : failures) {
    EXPECT_TRUE(contains(text, "ranks disagree on their number")) << text;
  }
  failures = testing::run_in_threads(
      2, [id = new_unique_id()](int) { Communicator::create(id, 0, 2, within(2s)); });
  for (const auto& text : failures) {
    EXPECT_TRUE(contains(text, "two callers say they are rank 0")) << text;
  }
  EXPECT_THROW(Communicator::create(UniqueId{}, 0, 1), Error);
  EXPECT_THROW(Communicator::create(new_unique_id(), 2, 2), Error);
}

TEST(Faults, CreationNoticesADeadRank) {
  const UniqueId id = new_unique_id();
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      Communicator::create(id, 1, 3);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  std::thread killer([&] {
    std::this_thread::sleep_for(200ms);
    ::kill(child, SIGKILL);
  });
  const auto start = Clock::now();
  try {
    Communicator::create(id, 0, 3, within(20s));
    ADD_FAILURE() << "no error";
  } catch (const Error& failure) {
    EXPECT_TRUE(contains(failure.what(), "died")) << failure.what();
  }
  EXPECT_LT(Clock::now() - start, 1500ms);
  killer.join();
  ::waitpid(child, nullptr, 0);
}

TEST(Faults, CreationCanBeCancelled) {
  CommunicatorOptions options;
  options.cancelled = std::make_shared<std::atomic<bool>>(false);
  std::thread canceller([&] {
    std::this_thread::sleep_for(200ms);
    *options.cancelled = true;
  });
  const auto start = Clock::now();
  EXPECT_THROW(Communicator::create(new_unique_id(), 0, 2, options), Error);
  EXPECT_LT(Clock::now() - start, 1s);
  canceller.join();
}

// ---- fork, and what is left behind ----

TEST(Faults, ForkAfterCreationIsSafe) {
  testing::expect_no_failure(testing::run_ranks(As::kProcesses, 2, [](Communicator& communicator) {
    float value = 1;
    communicator.run(all_reduce(&value, 1));
    const pid_t worker = ::fork();
    if (worker == 0) {
      // A data-loader worker: it must neither hang nor disturb.
      int code = 1;
      try {
        communicator.run(all_reduce(&value, 1));
      } catch (const Error& failure) {
        code = contains(failure.what(), "forked") ? 0 : 2;
      }
      communicator.abort("from a child");
      communicator.~Communicator();
      ::_exit(code);
    }
    for (int i = 0; i < 100; ++i) {
      value = 1;
      communicator.run(all_reduce(&value, 1));
      if (value != 2) {
        throw std::runtime_error("wrong sum");
      }
    }
    int status = 0;
    ::waitpid(worker, &status, 0);
    if (status != 0) {
      throw std::runtime_error("the worker failed");
    }
  }));
}

std::size_t count_in(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++count;
  }
  return count;
}

std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += contains(line, "memfd:accl") ? 1 : 0;
  }
  return count;
}

TEST(Faults, NothingIsLeftBehind) {
  const auto churn = [](int times) {
    for (int i = 0; i < times; ++i) {
      testing::expect_no_failure(
          testing::run_ranks(As::kThreads, 3, [](Communicator& communicator) {
            std::vector<float> data(10'000);
            communicator.run(all_reduce(data.data(), data.size()));
          }));
    }
  };
  churn(2);
  const std::size_t descriptors = count_in("/proc/self/fd");
  const std::size_t threads = count_in("/proc/self/task");
  const std::size_t files = count_in("/dev/shm");
  churn(100);
  EXPECT_EQ(count_in("/proc/self/fd"), descriptors);
  EXPECT_EQ(count_in("/proc/self/task"), threads);
  EXPECT_EQ(count_in("/dev/shm"), files);
  EXPECT_EQ(mappings(), 0U);
}

}  // namespace
}  // namespace ljtrain::accl
