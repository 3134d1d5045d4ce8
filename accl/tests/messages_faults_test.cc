// What messages do when a size, a deadline, a peer or the communicator is wrong.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "communicator/messages.h"
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

TEST(Messages, SizesThatDisagreeFailBothSidesAlike) {
  test::run_processes(2, [](const Rank& self) {
    Mail mail(self);
    // Short and long on either side.
    const std::vector<std::pair<std::size_t, std::size_t>> cases = {
        {32, 64}, {64, 32}, {0, 1}, {100'000, 64}, {64, 100'000}, {100'000, 200'000}};
    for (const auto& [sent, expected] : cases) {
      Bytes data(self.rank == 1 ? sent : expected);
      const Error failure =
          self.rank == 1 ? mail.failure(mail.send(data, 0)) : mail.failure(mail.receive(data, 1));
      EXPECT_EQ(std::string(failure.what()),
                fmt::format("rank 1 sends {} bytes to rank 0, which expects {}", sent, expected));
      EXPECT_EQ(failure.code(), ErrorCode::kInvalidUsage);
      EXPECT_EQ(failure.ranks(), std::vector<int>{1 - self.rank});
    }
    mail.barrier();  // the communicator is whole
  });
}

TEST(Messages, DeadlineCancelsASendForGood) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{200'000}}) {
    test::run_threads(2, [bytes](const Rank& self) {
      Mail mail(self);
      if (self.rank == 0) {
        const auto started = Clock::now();
        const Error failure = mail.failure(mail.send(contents(bytes, 0, 1, 9, 0), 1, 9, 100ms));
        EXPECT_LT(Clock::now() - started, 1s);
        EXPECT_EQ(failure.code(), ErrorCode::kTimeout);
        EXPECT_EQ(failure.ranks(), std::vector<int>{1});
        EXPECT_NE(std::string(failure.what()).find("rank 1"), std::string::npos) << failure.what();
        EXPECT_EQ(mail.messages.pending(), 0U);
        mail.barrier();
        mail.wait(mail.send(contents(bytes, 0, 1, 9, 1), 1, 9));
      } else {
        mail.barrier();
        Bytes in(bytes);
        mail.wait(mail.receive(in, 0, 9));
        EXPECT_EQ(in, contents(bytes, 0, 1, 9, 1)) << "the cancelled message came";
      }
    });
  }
}

// The word that a message is cancelled comes behind it: a receive posted later must not get it all
// the same.
TEST(Messages, CancelledMessageInTheStreamIsNotReceived) {
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{200'000}}) {
    auto segment = make_segment(2);
    test::join(segment, 0);
    test::join(segment, 1);
    Waiting waiting_0(segment, 0, 2);
    Waiting waiting_1(segment, 1, 2);
    Mail sender({segment, waiting_0, 0, 2});
    Mail receiver({segment, waiting_1, 1, 2});
    const Bytes old = contents(bytes, 0, 1, 0, 0);
    const Bytes fresh = contents(bytes, 0, 1, 0, 1);
    EXPECT_EQ(sender.failure(sender.send(old, 1, 0, 5ms)).code(), ErrorCode::kTimeout);
    Bytes in(bytes);
    const auto received = receiver.receive(in, 0);
    EXPECT_FALSE(received->is_done());
    const auto sent = sender.send(fresh, 1);
    while (!received->is_done() || !sent->is_done()) {
      receiver.messages.progress();
      sender.messages.progress();
    }
    EXPECT_FALSE(sent->failure() || received->failure());
    EXPECT_EQ(in, fresh);
  }
}

TEST(Messages, DeadlineOfAReceiveNamesWhatCameInstead) {
  test::run_threads(2, [](const Rank& self) {
    Mail mail(self);
    const Bytes out(16);
    Bytes in(16);
    if (self.rank == 0) {
      const auto sent = mail.send(out, 1, 8);
      mail.barrier();
      mail.wait(sent);
    } else {
      const std::string text = mail.failure(mail.receive(in, 0, 7, 300ms)).what();
      EXPECT_NE(text.find("receive of 16 bytes (tag 7) from rank 0"), std::string::npos) << text;
      EXPECT_NE(text.find("16 bytes with tag 8"), std::string::npos) << text;
      mail.barrier();
      mail.wait(mail.receive(in, 0, 8));
      EXPECT_EQ(mail.failure(mail.receive(in, kAnySource, 7, 10ms)).ranks(), std::vector<int>{0});
    }
  });
}

// One side of a granted message gives up while it streams: the other must learn of it, and the
// stream go on.
TEST(Messages, DeadlineInMidStream) {
  for (const bool sender_gives_up : {true, false}) {
    auto segment = make_segment(2);
    test::join(segment, 0);
    test::join(segment, 1);
    Waiting waiting_0(segment, 0, 2);
    Waiting waiting_1(segment, 1, 2);
    Mail sender({segment, waiting_0, 0, 2});
    Mail receiver({segment, waiting_1, 1, 2});
    Bytes out(3'000'000);
    Bytes in(out.size());
    const auto sent = sender.send(out, 1, 0, sender_gives_up ? 30ms : 20s);
    const auto received = receiver.receive(in, 0, 0, sender_gives_up ? 20s : 30ms);
    sender.messages.progress();    // sees the grant, fills the stream
    receiver.messages.progress();  // takes some
    sender.messages.progress();
    std::this_thread::sleep_for(40ms);
    const Error own = sender_gives_up ? sender.failure(sent) : receiver.failure(received);
    const Error other = sender_gives_up ? receiver.failure(received) : sender.failure(sent);
    EXPECT_EQ(own.code(), ErrorCode::kTimeout) << own.what();
    EXPECT_EQ(other.code(), ErrorCode::kRemote) << other.what();
    EXPECT_NE(std::string(other.what()).find("gave up"), std::string::npos) << other.what();
    EXPECT_EQ(std::string(other.what()).find(" 0 bytes"), std::string::npos) << other.what();
    const auto next = receiver.receive(in, 0, 0);
    const auto next_sent = sender.send(out, 1, 0);
    while (!next->is_done() || !next_sent->is_done()) {
      sender.messages.progress();
      receiver.messages.progress();
    }
    EXPECT_FALSE(next->failure() || next_sent->failure());
  }
}

TEST(Messages, DeadPeerFailsWhoNeedsIt) {
  auto segment = make_segment(3);
  const auto ends = test::run_processes(segment, 3, [](const Rank& self) {
    Mail mail(self);
    mail.barrier();
    if (self.rank == 2) {
      ::_exit(7);
    }
    Bytes data(self.rank == 0 ? 64 : 100'000);
    const auto started = Clock::now();
    const Error failure = mail.failure(self.rank == 0 ? mail.receive(data, 2) : mail.send(data, 2));
    EXPECT_LT(Clock::now() - started, 1s);
    EXPECT_EQ(failure.code(), ErrorCode::kRemote);
    EXPECT_EQ(failure.ranks(), std::vector<int>{2});
    EXPECT_NE(std::string(failure.what()).find("rank 2 (pid"), std::string::npos) << failure.what();
    // The others go on.
    Bytes in(9);
    const Bytes out = contents(9, self.rank, 1 - self.rank, 1, 1);
    const auto received = mail.receive(in, kAnySource, 1);
    mail.wait(mail.send(out, 1 - self.rank, 1));
    mail.wait(received);
    EXPECT_EQ(in, contents(9, 1 - self.rank, self.rank, 1, 1));
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 7}));
}

TEST(Messages, PeerThatLeftLeavesItsMessagesBehind) {
  test::run_threads(2, [](const Rank& self) {
    Mail mail(self);
    Bytes data = contents(20, 0, 1, 0, 0);
    if (self.rank == 0) {
      mail.send(data, 1);
      self.segment.control(0).state.store(shared_memory::RankState::kLeft);
      return;
    }
    while (self.segment.control(0).state.load() != shared_memory::RankState::kLeft) {
      std::this_thread::yield();
    }
    Bytes in(20);
    mail.wait(mail.receive(in, 0));
    EXPECT_EQ(in, data);
    const auto started = Clock::now();
    EXPECT_EQ(mail.failure(mail.receive(in, 0)).code(), ErrorCode::kRemote);
    EXPECT_EQ(mail.failure(mail.receive(in, kAnySource)).code(), ErrorCode::kRemote);
    EXPECT_EQ(mail.failure(mail.send(in, 0)).code(), ErrorCode::kRemote);
    EXPECT_LT(Clock::now() - started, 1s);
  });
}

TEST(Messages, BrokenCommunicatorFailsAllWithItsSentence) {
  test::run_threads(2, [](const Rank& self) {
    Mail mail(self);
    Bytes data(100'000);
    const auto first = mail.receive(data, 1 - self.rank);
    const auto second = mail.send(data, 1 - self.rank, 1);
    if (self.rank == 0) {
      std::this_thread::sleep_for(50ms);
      self.waiting.break_communicator(error(ErrorCode::kInvalidUsage, "ranks disagree"));
    }
    EXPECT_STREQ(mail.failure(first).what(), "ranks disagree");
    EXPECT_STREQ(mail.failure(second).what(), "ranks disagree");
    EXPECT_THROW(mail.send(data, 1 - self.rank), Error);
    mail.messages.wait_for_progress(5ms);  // returns
    EXPECT_EQ(mail.messages.pending(), 0U);
  });
}

TEST(Messages, AbortEndsAWait) {
  test::run_threads(2, [](const Rank& self) {
    Mail mail(self);
    if (self.rank == 1) {
      return;
    }
    Bytes data(10);
    const auto handle = mail.receive(data, 1);
    std::thread other([&] {
      std::this_thread::sleep_for(50ms);
      self.waiting.abort("enough");
    });
    const auto started = Clock::now();
    const Error failure = mail.failure(handle);
    EXPECT_LT(Clock::now() - started, 1s);
    EXPECT_EQ(failure.code(), ErrorCode::kAborted);
    EXPECT_STREQ(failure.what(), "enough");
    other.join();
  });
}

}  // namespace
}  // namespace ljtrain::accl
