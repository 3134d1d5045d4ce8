#include "launcher/event_server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

using std::chrono::milliseconds;

class EventServerTest : public ::testing::Test {
 protected:
  // Serves until `done` says so, at most two seconds.
  template <typename Done>
  void serve(EventServer& server, Done done) {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (!done() && std::chrono::steady_clock::now() < deadline) {
      std::vector<pollfd> polled;
      server.add_to(polled);
      ::poll(polled.data(), polled.size(), 20);
      server.serve([this](int rank, const base::Json& event) {
        events_[rank].push_back(event["event"].get<std::string>());
      });
    }
  }

  static base::Json hello(const std::string& run, const base::Json& rank) {
    return {{"event", "hello"}, {"run", run}, {"rank", rank}, {"host", "h"}, {"cpus", {1, 2}}};
  }

  std::map<int, std::vector<std::string>> events_;
};

TEST_F(EventServerTest, ARankReportsGetsItsSettingsAndSendsEvents) {
  EventServer server("127.0.0.1", 0, "run", 2, {{"worker", {{"seq", 64}}}});
  base::Json reply;
  std::thread rank([&] {
    auto answer = report_to("127.0.0.1", server.port(), hello("run", 1), milliseconds(2000));
    reply = answer.second;
    const std::string text = "{\"event\": \"step\"}\nno event\n{\"event\": \"done\"}\n";
    EXPECT_EQ(::write(answer.first.get(), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
  });
  serve(server, [&] { return server.closed(1); });
  rank.join();
  EXPECT_EQ(reply["worker"]["seq"], 64);
  EXPECT_EQ(events_[1], (std::vector<std::string>{"step", "done"}));
  EXPECT_EQ(server.identity(1)->host, "h");
  EXPECT_EQ(server.identity(1)->cpus, (std::vector<int>{1, 2}));
  EXPECT_FALSE(server.identity(0).has_value());
  EXPECT_FALSE(server.closed(0));
}

TEST_F(EventServerTest, StrangersAreSentAway) {
  EventServer server("127.0.0.1", 0, "run", 1, {});
  std::vector<base::Json> strangers{hello("other", 0), hello("run", 1),     hello("run", -1),
                                    hello("run", "0"), base::Json::array(), "x"};
  std::atomic<bool> over = false;
  std::thread tries([&] {
    for (const base::Json& stranger : strangers) {
      EXPECT_THROW(report_to("127.0.0.1", server.port(), stranger, milliseconds(1000)),
                   base::RunError)
          << stranger;
    }
    report_to("127.0.0.1", server.port(), hello("run", 0), milliseconds(1000));
    // The seat is taken.
    EXPECT_THROW(report_to("127.0.0.1", server.port(), hello("run", 0), milliseconds(1000)),
                 base::RunError);
    over = true;
  });
  serve(server, [&] { return over.load(); });
  tries.join();
  EXPECT_TRUE(over);
  EXPECT_TRUE(server.identity(0).has_value());
}

TEST_F(EventServerTest, NobodyThereIsOneClearLine) {
  int port = EventServer("127.0.0.1", 0, "run", 1, {}).port();
  try {
    report_to("127.0.0.1", port, hello("run", 0), milliseconds(300));
    FAIL();
  } catch (const base::RunError& error) {
    EXPECT_NE(std::string(error.what()).find("is not reached"), std::string::npos);
  }
}

TEST_F(EventServerTest, APortInUseIsSaid) {
  EventServer first("127.0.0.1", 0, "run", 1, {});
  EXPECT_THROW(EventServer("127.0.0.1", first.port(), "run", 1, {}), base::RunError);
}

}  // namespace
}  // namespace ljtrain::ljperf
