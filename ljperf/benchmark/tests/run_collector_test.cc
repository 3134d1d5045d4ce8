#include "benchmark/run_collector.h"

#include <gtest/gtest.h>

#include <cmath>

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
  RunCollector collector(2);
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

TEST(RunCollector, RanksOnTheSameDataAreAnError) {
  RunCollector collector(3);
  collector.add(0, step_event(0, 1, 4, "a"));
  collector.add(1, step_event(0, 1, 4, "b"));
  try {
    collector.add(2, step_event(0, 1, 4, "a"));
    FAIL() << "accepted";
  } catch (const base::RunError& error) {
    EXPECT_NE(std::string(error.what()).find("ranks 0 and 2 trained on the same data"),
              std::string::npos);
  }
}

TEST(RunCollector, ALossThatIsNotFiniteStaysVisible) {
  RunCollector collector(1);
  Json event = step_event(0, 1, 4, "a");
  event["loss"] = nullptr;
  EXPECT_TRUE(std::isnan(collector.add(0, event)->loss));
}

TEST(RunCollector, AnEventWithoutItsNumbersIsAnErrorNotACrash) {
  RunCollector collector(1);
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
