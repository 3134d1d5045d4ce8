#include "launcher/rank_group.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

using std::chrono::milliseconds;

// Ranks are shell scripts here: what is tested is the watching, not the training.
class RankGroupTest : public ::testing::Test {
 protected:
  RankGroupTest() {
    folder_ =
        std::filesystem::temp_directory_path() / fmt::format("rank_group_test.{}", ::getpid());
    std::filesystem::create_directories(folder_);
  }
  ~RankGroupTest() override { std::filesystem::remove_all(folder_); }

  RankGroupResult run(const std::string& script, int ranks = 2,
                      const std::function<void()>& on_tick = {}) {
    RankGroupPlan plan;
    plan.argv = {"bash", "-c",
                 "say() { echo \"$1\" >&$LJTRAIN_EVENT_FD; }\n"
                 "step() { say '{\"event\": \"step\"}'; }\n"
                 "done_() { say '{\"event\": \"done\"}'; }\n" +
                     script};
    plan.environment = base::current_environment();
    plan.placement.resize(static_cast<std::size_t>(ranks));
    plan.log_folder = folder_;
    plan.start_timeout = milliseconds(5000);
    plan.step_timeout = milliseconds(700);
    RankGroupObserver observer;
    observer.on_event = [this](int rank, const base::Json& event) {
      ++events_[event["event"].get<std::string>()];
      if (event.contains("pid")) {
        pids_[rank] = event["pid"].get<int>();
      }
    };
    observer.on_tick = on_tick;
    started_ = std::chrono::steady_clock::now();
    RankGroupResult result = run_ranks(plan, observer, base::Interrupts());
    took_ = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - started_);
    EXPECT_EQ(base::end_descendants(milliseconds(50)), 0) << "processes were left behind";
    return result;
  }

  std::filesystem::path folder_;
  std::map<std::string, int> events_;
  std::map<int, int> pids_;
  std::chrono::steady_clock::time_point started_;
  milliseconds took_{0};
};

TEST_F(RankGroupTest, CompletesWhenEveryRankIsDone) {
  RankGroupResult result = run("step; step; done_");
  EXPECT_EQ(result.outcome, Outcome::kCompleted) << result.sentence;
  EXPECT_EQ(events_["step"], 4);
  EXPECT_EQ(events_["done"], 2);
}

TEST_F(RankGroupTest, ManyEventsJustBeforeTheEndAreAllRead) {
  for (int i = 0; i < 10; ++i) {
    events_.clear();
    RankGroupResult result = run("for i in $(seq 500); do step; done; done_");
    ASSERT_EQ(result.outcome, Outcome::kCompleted) << result.sentence;
    ASSERT_EQ(events_["step"], 1000);
  }
}

TEST_F(RankGroupTest, NamesTheRankThatCrashedNotTheOneThatLostItsPeer) {
  RankGroupResult result =
      run("step; if [ $RANK = 1 ]; then echo 'about to crash'; kill -SEGV $$; fi; sleep 0.2;"
          "say '{\"event\": \"error\", \"kind\": \"exception\", \"message\": \"Connection closed "
          "by peer\"}'; exit 1");
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_EQ(result.failing_rank, 1);
  EXPECT_EQ(result.sentence, "rank 1 crashed with Segmentation fault after step 1");
  ASSERT_FALSE(result.last_lines.empty());
  EXPECT_EQ(result.last_lines.back(), "about to crash");
}

TEST_F(RankGroupTest, SaysThatARankWasKilled) {
  RankGroupResult result = run("[ $RANK = 0 ] && kill -KILL $$; sleep 30");
  EXPECT_EQ(result.failing_rank, 0);
  EXPECT_EQ(result.sentence.find("rank 0 was killed by SIGKILL ("), 0U) << result.sentence;
  EXPECT_LT(took_, milliseconds(4000));
}

TEST_F(RankGroupTest, TellsAWorkersOwnWords) {
  RankGroupResult result =
      run("say '{\"event\": \"error\", \"kind\": \"bad_input\", \"message\": \"no such key\", "
          "\"traceback\": \"T\"}'; exit 2");
  EXPECT_EQ(result.outcome, Outcome::kBadInput);
  EXPECT_EQ(result.sentence, "no such key");
  EXPECT_EQ(result.traceback, "T");
}

TEST_F(RankGroupTest, EndingWithoutAWordIsAFailure) {
  RankGroupResult result = run("exit 0");
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_NE(result.sentence.find("without saying why"), std::string::npos);
}

TEST_F(RankGroupTest, AHungRankEndsTheRunAndIsNamed) {
  RankGroupResult result = run("step; [ $RANK = 1 ] && step; sleep 60");
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_EQ(result.failing_rank, 0);
  EXPECT_EQ(
      result.sentence,
      "no step within --step-timeout 0.7 s after step 1: hung in rank 0 (its stack is in its log)");
  EXPECT_LT(took_, milliseconds(4000));
}

TEST_F(RankGroupTest, AStoppedRankIsCalledStopped) {
  RankGroupResult result = run("step; [ $RANK = 1 ] && kill -STOP $$; sleep 60");
  EXPECT_EQ(result.failing_rank, 1);
  EXPECT_NE(result.sentence.find("rank 1 is stopped"), std::string::npos) << result.sentence;
}

TEST_F(RankGroupTest, AnInterruptEndsEverythingAtOnce) {
  bool sent = false;
  RankGroupResult result = run("setsid sleep 60 & step; sleep 60", 3, [&] {
    if (!sent && events_["step"] == 3) {
      sent = true;
      ::kill(::getpid(), SIGINT);
    }
  });
  EXPECT_EQ(result.outcome, Outcome::kInterrupted);
  EXPECT_LT(took_, milliseconds(2000));
}

TEST_F(RankGroupTest, AThrowingObserverEndsTheRanks) {
  EXPECT_THROW(run("step; sleep 60", 2, [] { throw base::run_error("enough"); }), base::RunError);
  EXPECT_EQ(base::end_descendants(milliseconds(50)), 0);
}

TEST_F(RankGroupTest, GarbageOnTheEventPipeIsSkipped) {
  RankGroupResult result =
      run("say 'not json'; say '[1'; say '{\"no\": 1}'; say '{\"event\": 3}'; head -c 3000000 "
          "/dev/zero >&$LJTRAIN_EVENT_FD;"
          "say ''; step; done_");
  EXPECT_EQ(result.outcome, Outcome::kCompleted) << result.sentence;
  EXPECT_EQ(events_["step"], 2);
}

TEST_F(RankGroupTest, EachRankKnowsItsPlace) {
  RankGroupResult result =
      run("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR; step; done_", 3);
  EXPECT_EQ(result.outcome, Outcome::kCompleted);
  EXPECT_EQ(last_lines_of(folder_ / "rank-2.log", 1).at(0), "2 2 3 3 127.0.0.1");
}

TEST(DeepSpeedSharedMemory, OnlyThisRunsFilesAreRemoved) {
  auto file = [](const std::string& end) {
    std::string path = fmt::format("/dev/shm/deepspeed_allreduce_buffer_{}_{}", ::getuid(), end);
    std::ofstream(path) << "x";
    return std::filesystem::path(path);
  };
  std::filesystem::path ours = file("127.0.0.1_1_0");
  std::filesystem::path other_rank = file("127.0.0.1_1_2");
  std::filesystem::path other_port = file("127.0.0.1_12_0");
  EXPECT_EQ(remove_deepspeed_shared_memory("127.0.0.1", 1, 2),
            std::vector<std::filesystem::path>{ours});
  EXPECT_TRUE(std::filesystem::remove(other_rank));
  EXPECT_TRUE(std::filesystem::remove(other_port));
}

}  // namespace
}  // namespace ljtrain::ljperf
