#include "benchmark/run_collector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

using base::Json;

Json step_event(int step, double seconds, double loss, const std::string& digest) {
  return {{"event", "step"},
          {"step", step},
          {"seconds", seconds},
          {"loss", loss},
          {"tokens", 512},
          {"data_digest", digest},
          {"instrumented", true},
          {"peak_bytes", 100},
          {"breakdown",
           {{"data", 0.0},
            {"forward", seconds / 2},
            {"backward", seconds / 2},
            {"communication", 0.0},
            {"optimizer", 0.0},
            {"other", 0.0}}}};
}

TEST(RunCollector, AStepIsCompleteWhenAllRanksMadeIt) {
  RunCollector collector(2, "cpu");
  EXPECT_FALSE(collector.add(0, step_event(0, 1.0, 4, "a")).has_value());
  EXPECT_FALSE(collector.add(0, step_event(1, 1.0, 4, "c")).has_value());
  auto step = collector.add(1, step_event(0, 3.0, 6, "b"));
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->step, 0);
  EXPECT_DOUBLE_EQ(step->seconds, 2.0);
  EXPECT_DOUBLE_EQ(step->loss, 5.0);
  EXPECT_EQ(step->breakdown_s_per_rank.size(), 2U);
  EXPECT_EQ(collector.tokens_per_step(), 1024);
  EXPECT_EQ(collector.steps().size(), 1U);
}

// Three ranks make kComparedSteps steps; `digest(rank, step)` names their data.
std::string complaint(const std::function<std::string(int, std::size_t)>& digest) {
  RunCollector collector(3, "cpu");
  try {
    for (std::size_t step = 0; step < kComparedSteps; ++step) {
      for (int rank = 0; rank < 3; ++rank) {
        collector.add(rank, step_event(static_cast<int>(step), 1, 4, digest(rank, step)));
      }
    }
  } catch (const base::RunError& error) {
    return error.what();
  }
  return "";
}

TEST(RunCollector, RanksOnTheSameDataAreAnError) {
  std::string sentence = complaint(
      [](int rank, std::size_t step) { return fmt::format("{}-{}", rank == 2 ? 0 : rank, step); });
  EXPECT_EQ(sentence.find("ranks 0 and 2 trained on the same data"), 0U) << sentence;
}

TEST(RunCollector, OneAlikeStepIsChance) {
  EXPECT_EQ(complaint([](int rank, std::size_t step) {
              return step == 1 ? "same" : fmt::format("{}-{}", rank, step);
            }),
            "");
}

TEST(RunCollector, AnotherDeviceThanPlannedIsAnError) {
  RunCollector collector(1, "cuda");
  EXPECT_THROW(collector.add(0, {{"event", "start"}, {"device", "cpu"}}), base::RunError);
}

TEST(RunCollector, ThePeakIsTheLargestOfTheSteps) {
  RunCollector collector(1, "cpu");
  for (int step = 0; step < 3; ++step) {
    Json event = step_event(step, 1, 4, "a");
    event["peak_bytes"] = step == 1 ? 700 : 300;
    collector.add(0, event);
  }
  EXPECT_EQ(collector.ranks().front().peak_bytes, 700U);
}

TEST(RunCollector, ALossThatIsNotFiniteStaysVisible) {
  RunCollector collector(1, "cpu");
  Json event = step_event(0, 1, 4, "a");
  event["loss"] = nullptr;
  EXPECT_TRUE(std::isnan(collector.add(0, event)->loss));
}

TEST(RunCollector, AnEventWithoutItsNumbersIsAnErrorNotACrash) {
  RunCollector collector(1, "cpu");
  for (const char* key : {"seconds", "tokens", "step"}) {
    Json event = step_event(0, 1, 4, "a");
    event.erase(key);
    EXPECT_THROW(collector.add(0, event), base::RunError) << key;
    event[key] = "text";
    EXPECT_THROW(collector.add(0, event), base::RunError) << key;
  }
}

}  // namespace
}  // namespace ljtrain::ljperf
