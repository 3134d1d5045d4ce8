#include "communicator/messages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "mail.h"
#include "segment_ranks.h"

namespace ljtrain::accl {
namespace {

using namespace std::chrono_literals;
using test::Bytes;
using test::contents;
using test::Mail;
using test::make_segment;
using test::Rank;

constexpr std::size_t kSizes[] = {0, 1, 8, 32, 33, 4097, (15 << 10), (33 << 10), (1 << 20) + 13};

void send_every_size(const Rank& self) {
  Mail mail(self);
  const int peer = 1 - self.rank;
  for (const bool receive_first : {false, true}) {
    for (const std::size_t bytes : kSizes) {
      const Bytes out = contents(bytes, self.rank, peer, 3, 0);
      Bytes in(bytes);
      std::vector<MessageHandle> handles(2);
      if (receive_first) {
        handles[0] = mail.receive(in, peer, 3);
      }
      handles[1] = mail.send(out, peer, 3);
      if (!receive_first) {
        handles[0] = mail.receive(in, peer, 3);
      }
      mail.messages.wait(handles);
      EXPECT_EQ(in, contents(bytes, peer, self.rank, 3, 0)) << bytes << " bytes";
      EXPECT_EQ(handles[0]->source(), peer);
      EXPECT_EQ(mail.messages.pending(), 0U);
    }
  }
}

TEST(Messages, EverySizeBetweenThreads) { test::run_threads(2, send_every_size); }
TEST(Messages, EverySizeBetweenProcesses) { test::run_processes(2, send_every_size); }

TEST(Messages, OneTagInOrderOtherTagsInAny) {
  test::run_threads(2, [](const Rank& self) {
    Mail mail(self);
    constexpr int kEach = 40;
    constexpr int kTags = 3;
    std::vector<Bytes> data;
    std::vector<MessageHandle> handles;
    data.reserve(std::size_t{kEach} * kTags);
    if (self.rank == 0) {
      for (int number = 0; number < kEach; ++number) {
        for (int tag = 0; tag < kTags; ++tag) {
          data.push_back(contents(tag == 1 ? 50'000 : 700, 0, 1, tag, number));
          handles.push_back(mail.send(data.back(), 1, tag));
        }
      }
    } else {
      // The last tag first: what comes before it must step aside.
      for (int tag = kTags - 1; tag >= 0; --tag) {
        for (int number = 0; number < kEach; ++number) {
          data.emplace_back(tag == 1 ? 50'000 : 700);
          mail.wait(mail.receive(data.back(), 0, tag));
          ASSERT_EQ(data.back(), contents(data.back().size(), 0, 1, tag, number));
        }
      }
    }
    mail.messages.wait(handles);
  });
}

TEST(Messages, ToOneself) {
  test::run_threads(1, [](const Rank& self) {
    Mail mail(self);
    for (const std::size_t bytes : kSizes) {
      const Bytes out = contents(bytes, 0, 0, 0, 0);
      Bytes in(bytes);
      const auto sent = mail.send(out, 0);
      EXPECT_FALSE(sent->is_done());
      const auto received = mail.receive(in, bytes % 2 == 0 ? 0 : kAnySource);
      mail.wait(received);
      mail.wait(sent);
      EXPECT_EQ(received->source(), 0);
      EXPECT_EQ(in, out);
      const auto early = mail.receive(in, 0, 4);
      mail.wait(mail.send(out, 0, 4));
      EXPECT_TRUE(early->is_done());
    }
    Bytes small(3);
    const Bytes large(4);
    const auto sent = mail.send(large, 0);
    EXPECT_STREQ(mail.failure(mail.receive(small, 0)).what(),
                 "rank 0 sends 4 bytes to rank 0, which expects 3");
    EXPECT_EQ(mail.failure(sent).code(), ErrorCode::kInvalidUsage);
    EXPECT_EQ(mail.failure(mail.send(large, 0, 0, 20ms)).code(), ErrorCode::kTimeout);
    EXPECT_EQ(mail.messages.pending(), 0U);
  });
}

TEST(Messages, FromAnySource) {
  constexpr int kRanks = 4;
  constexpr int kEach = 25;
  test::run_threads(kRanks, [](const Rank& self) {
    Mail mail(self);
    for (const std::size_t bytes : {std::size_t{24}, std::size_t{70'000}}) {
      mail.barrier();  // any source: no rank may be ahead with the next size
      if (self.rank != 0) {
        for (int number = 0; number < kEach; ++number) {
          mail.wait(mail.send(contents(bytes, self.rank, 0, 5, number), 0, 5));
        }
        continue;
      }
      std::vector<int> next(kRanks, 0);
      for (int i = 0; i < kEach * (kRanks - 1); ++i) {
        Bytes in(bytes);
        const auto handle = mail.receive(in, kAnySource, 5);
        mail.wait(handle);
        const int source = handle->source();
        ASSERT_GT(source, 0);
        ASSERT_EQ(in, contents(bytes, source, 0, 5, next[static_cast<std::size_t>(source)]++));
      }
    }
  });
}

TEST(Messages, UnaskedMessagesStayInTheStreamUntilSomethingBehindIsNeeded) {
  test::run_threads(2, [](const Rank& self) {
    Mail mail(self);
    constexpr int kMany = 200;  // much more than the stream holds
    const std::size_t bytes = 4000;
    if (self.rank == 0) {
      std::vector<Bytes> data;
      std::vector<MessageHandle> handles;
      for (int tag = 0; tag < kMany; ++tag) {
        data.push_back(contents(bytes, 0, 1, tag, 0));
      }
      for (int tag = 0; tag < kMany; ++tag) {
        handles.push_back(mail.send(data[static_cast<std::size_t>(tag)], 1, tag));
      }
      mail.messages.wait(handles);
      return;
    }
    std::this_thread::sleep_for(20ms);
    EXPECT_FALSE(mail.messages.progress());
    for (int tag = kMany - 1; tag >= 0; --tag) {
      Bytes in(bytes);
      mail.wait(mail.receive(in, 0, tag));
      ASSERT_EQ(in, contents(bytes, 0, 1, tag, 0));
    }
  });
}

void storm(const Rank& self) {
  Mail mail(self);
  constexpr int kRounds = 30;
  std::vector<Bytes> out;
  std::vector<Bytes> in;
  std::vector<MessageHandle> handles;
  const auto size = [](int from, int to, int round) {
    const int bytes = (from * 977 + to * 3571 + round * 6151) % 40'000;
    return static_cast<std::size_t>(bytes);
  };
  out.reserve(std::size_t{kRounds} * static_cast<std::size_t>(self.ranks));
  in.reserve(out.capacity());
  for (int round = 0; round < kRounds; ++round) {
    for (int peer = 0; peer < self.ranks; ++peer) {
      in.emplace_back(size(peer, self.rank, round));
      handles.push_back(mail.receive(in.back(), peer));
      out.push_back(contents(size(self.rank, peer, round), self.rank, peer, 0, round));
      handles.push_back(mail.send(out.back(), peer));
    }
  }
  mail.messages.wait(handles);
  for (int i = 0; i < kRounds * self.ranks; ++i) {
    const auto& data = in[static_cast<std::size_t>(i)];
    ASSERT_EQ(data, contents(data.size(), i % self.ranks, self.rank, 0, i / self.ranks));
  }
}

TEST(Messages, StormOfThreads) { test::run_threads(5, storm); }
TEST(Messages, StormOfProcesses) { test::run_processes(4, storm); }

// A schedule drawn from a seed that all ranks share: who sends what to whom, in which order each
// rank posts, and when it waits. The model: the i-th receive for (source, tag) gets the i-th
// message sent with it.
void random_schedule(const Rank& self, unsigned seed) {
  struct Planned {
    int from, to, tag, number;
    std::size_t bytes;
  };
  std::mt19937 shared(seed);
  std::vector<Planned> plan;
  std::map<std::tuple<int, int, int>, int> numbers;
  for (int i = 0; i < 60 * self.ranks; ++i) {
    const auto pick = [&](int below) {
      return static_cast<int>(shared() % static_cast<unsigned>(below));
    };
    Planned one{pick(self.ranks), pick(self.ranks), pick(3) - 1, 0, 0};
    const int kind = pick(10);
    one.bytes = static_cast<std::size_t>(kind < 6   ? pick(50)
                                         : kind < 9 ? pick(20'000)
                                                    : pick(150'000));
    one.number = numbers[{one.from, one.to, one.tag}]++;
    plan.push_back(one);
  }
  Mail mail(self);
  std::mt19937 own(seed * 31 + static_cast<unsigned>(self.rank));
  // Own events in random order, but for each (peer, tag, direction) in the plan's.
  struct Event {
    const Planned* planned;
    bool is_send;
  };
  std::map<std::tuple<bool, int, int>, std::deque<Event>> lists;
  std::size_t events = 0;
  for (const Planned& one : plan) {
    if (one.from == self.rank) {
      lists[{true, one.to, one.tag}].push_back({&one, true});
      ++events;
    }
    if (one.to == self.rank) {
      lists[{false, one.from, one.tag}].push_back({&one, false});
      ++events;
    }
  }
  struct Open {
    Event event;
    Bytes data;
    MessageHandle handle;
  };
  std::vector<std::unique_ptr<Open>> open;
  while (events-- > 0) {
    auto list = std::next(lists.begin(), static_cast<std::ptrdiff_t>(own() % lists.size()));
    const Event event = list->second.front();
    list->second.pop_front();
    if (list->second.empty()) {
      lists.erase(list);
    }
    auto one = std::make_unique<Open>();
    one->event = event;
    const Planned& p = *event.planned;
    one->data = event.is_send ? contents(p.bytes, p.from, p.to, p.tag, p.number) : Bytes(p.bytes);
    one->handle =
        event.is_send ? mail.send(one->data, p.to, p.tag) : mail.receive(one->data, p.from, p.tag);
    open.push_back(std::move(one));
    if (own() % 8 == 0) {
      mail.messages.progress();
    }
  }
  std::shuffle(open.begin(), open.end(), own);
  for (const auto& one : open) {
    mail.wait(one->handle);
    const Planned& p = *one->event.planned;
    ASSERT_EQ(one->data, contents(p.bytes, p.from, p.to, p.tag, p.number))
        << "seed " << seed << ": " << p.from << " -> " << p.to << " tag " << p.tag << " #"
        << p.number;
  }
  EXPECT_EQ(mail.messages.pending(), 0U);
  EXPECT_EQ(mail.messages.describe_pending(), "");
}

TEST(Messages, RandomSchedulesFollowTheModel) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    auto segment =
        make_segment(static_cast<int>(1 + seed % 5), seed % 3 == 0 ? 4096 : test::kChannelBytes);
    test::run_threads(segment, static_cast<int>(1 + seed % 5),
                      [seed](const Rank& self) { random_schedule(self, seed); });
  }
}

TEST(Messages, RandomSchedulesOfProcesses) {
  for (unsigned seed = 101; seed <= 104; ++seed) {
    test::run_processes(3, [seed](const Rank& self) { random_schedule(self, seed); });
  }
}

TEST(Messages, ManyThreadsPostWhileOneDrives) {
  test::run_threads(2, [](const Rank& self) {
    Mail mail(self);
    const int peer = 1 - self.rank;
    std::atomic<bool> stop{false};
    std::thread driver([&] {
      while (!stop) {
        mail.messages.wait_for_progress(10s);
      }
    });
    std::vector<std::thread> users;
    users.reserve(3);
    for (int user = 0; user < 3; ++user) {
      users.emplace_back([&, user] {
        for (int number = 0; number < 60; ++number) {
          const auto bytes = static_cast<std::size_t>(number % 10 == 9 ? 60'000 : 40 * number);
          const Bytes out = contents(bytes, self.rank, peer, user, number);
          Bytes in(bytes);
          const std::vector<MessageHandle> handles = {mail.receive(in, peer, user),
                                                      mail.send(out, peer, user)};
          if (user == 2) {  // leaves it to the driver
            while (!handles[0]->is_done() || !handles[1]->is_done()) {
              std::this_thread::sleep_for(100us);
            }
          }
          mail.messages.wait(handles);
          ASSERT_EQ(in, contents(bytes, peer, self.rank, user, number));
        }
      });
    }
    for (auto& user : users) {
      user.join();
    }
    stop = true;
    mail.messages.interrupt_wait();
    driver.join();
  });
}

TEST(Messages, InterruptWakesAWaiterWithNothingToDo) {
  test::run_threads(1, [](const Rank& self) {
    Mail mail(self);
    const auto started = Clock::now();
    std::thread other([&] {
      std::this_thread::sleep_for(30ms);
      mail.messages.interrupt_wait();
    });
    mail.messages.wait_for_progress(20s);
    EXPECT_LT(Clock::now() - started, 5s);
    other.join();
    mail.messages.interrupt_wait();  // before the wait: not lost
    mail.messages.wait_for_progress(20s);
    EXPECT_LT(Clock::now() - started, 5s);
    mail.messages.wait_for_progress(10ms);
  });
}

TEST(Messages, SayWhatTheyWaitFor) {
  test::run_threads(1, [](const Rank& self) {
    Mail mail(self);
    Bytes data(64);
    const auto handle = mail.receive(data, kAnySource, 3, 50ms);
    EXPECT_EQ(mail.messages.describe_pending(), "receive of 64 bytes (tag 3) from any rank");
    EXPECT_FALSE(handle->is_done());
    EXPECT_EQ(mail.failure(handle).code(), ErrorCode::kTimeout);
  });
}

TEST(Messages, ArgumentsThatMeanNothing) {
  test::run_threads(1, [](const Rank& self) {
    Mail mail(self);
    Bytes data(4);
    EXPECT_THROW(mail.send(data, 1), Error);
    EXPECT_THROW(mail.send(data, kAnySource), Error);
    EXPECT_THROW(mail.receive(data, -2), Error);
    EXPECT_THROW(mail.messages.post({.data = nullptr, .bytes = 1, .peer = 0}), Error);
    EXPECT_EQ(mail.messages.pending(), 0U);
  });
}

}  // namespace
}  // namespace ljtrain::accl
