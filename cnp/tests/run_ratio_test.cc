#include "cnp/run_ratio.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "base/errors.h"
#include "base/json.h"

namespace ljtrain::cnp {
namespace {

using base::Json;
using base::UserError;
using Values = std::vector<double>;

constexpr double kHour = 3600;

// One run each, the first at `start_s`, the others `every_s` apart.
std::vector<Measurement> apart(const Values& medians, double start_s, double every_s) {
  std::vector<Measurement> side;
  for (std::size_t i = 0; i < medians.size(); ++i) {
    side.push_back({.start_s = start_s + every_s * static_cast<double>(i),
                    .run_medians_s = {medians[i]},
                    .steps_s = {}});
  }
  return side;
}

std::vector<Measurement> repeats(const Values& medians, double start_s = 0) {
  return {{.start_s = start_s, .run_medians_s = medians, .steps_s = {}}};
}

void expect_close(double found, double expected, const std::string& what) {
  EXPECT_NEAR(found, expected, 1e-9 * std::abs(expected) + 1e-13) << what;
}

RunRatio estimate(const Json& row) {
  auto a = row["a"].get<Values>();
  auto b = row["b"].get<Values>();
  double level = row.value("level", 0.95);
  if (row["method"] == "independent") return independent_ratio(a, b, level);
  if (row["method"] == "steps") return steps_ratio(a, b);
  if (row["method"] == "pairs") {
    return ratio_of_runs(apart(a, 0, kHour), apart(b, 60, kHour), level);
  }
  if (row["method"] == "sessions") {
    return ratio_of_runs(apart(a, 0, kHour), apart(b, 100 * kHour, kHour), level);
  }
  return ratio_of_runs(repeats(a), repeats(b, kHour), level);
}

// tests/test_statistics_reference.py derives these with SciPy.
TEST(RunRatio, AgreesWithScipy) {
  std::ifstream file(std::string(LJTRAIN_SOURCE_DIR) + "/cnp/tests/data/statistics_reference.json");
  const Json rows = Json::parse(file)["scipy"]["run_ratios"];
  ASSERT_GE(rows.size(), 11U);
  for (const Json& row : rows) {
    std::string what = row["method"].get<std::string>();
    RunRatio found = estimate(row);
    ASSERT_TRUE(found.p_value.has_value()) << what;
    expect_close(*found.p_value, row["p_value"], what + " p");
    if (!row.contains("interval")) {
      EXPECT_FALSE(found.interval.has_value()) << what;
      continue;
    }
    ASSERT_TRUE(found.interval.has_value()) << what;
    expect_close(found.interval->low, row["interval"][0], what + " low");
    expect_close(found.interval->high, row["interval"][1], what + " high");
    expect_close(found.degrees, row["degrees"], what + " degrees");
  }
}

TEST(RunRatio, AlternatingSidesArePaired) {
  // The machine slows down by 30 %; b takes 2 % less all the while. A B, B A, A B, B A.
  std::vector<Measurement> a;
  std::vector<Measurement> b;
  for (int i = 0; i < 8; ++i) {
    double mood = std::exp(0.04 * (i / 2));
    bool is_a = i % 4 == 0 || i % 4 == 3;
    (is_a ? a : b)
        .push_back(
            {.start_s = 60.0 * i, .run_medians_s = {is_a ? mood : mood / 1.02}, .steps_s = {}});
  }
  RunRatio found = ratio_of_runs(a, b);
  EXPECT_EQ(found.method, RatioMethod::kPairs);
  EXPECT_EQ(found.pairs, 4U);
  EXPECT_NEAR(found.ratio, 1.02, 1e-9);
  EXPECT_NEAR(found.interval->low, 1.02, 1e-6);
  EXPECT_NEAR(found.interval->high, 1.02, 1e-6);
}

TEST(RunRatio, OneAfterTheOtherIsNotPaired) {
  RunRatio found = ratio_of_runs(apart({1, 1.01, 0.99}, 0, 60), apart({1, 1.01, 0.99}, 180, 60));
  EXPECT_EQ(found.method, RatioMethod::kSessions);
  EXPECT_EQ(found.sessions_a, 1U);
  EXPECT_EQ(found.runs_a, 3U);
}

TEST(RunRatio, AFewWithoutPartnerAreLeftOut) {
  std::vector<Measurement> a = apart({1, 1, 1, 1}, 0, 120);
  std::vector<Measurement> b = apart({1.1, 1.1, 1.1, 1.1, 1.1, 1.1}, 60, 120);
  EXPECT_EQ(ratio_of_runs(a, b).pairs, 4U);
  b = apart(Values(9, 1.1), 60, 120);
  EXPECT_EQ(ratio_of_runs(a, b).method, RatioMethod::kSessions);  // 5 of 13 without
}

TEST(RunRatio, RunsOfOneSessionShareItsState) {
  Values runs = {1, 1.01, 0.99, 1.005};
  RunRatio one_session = ratio_of_runs(repeats(runs), repeats(runs, kHour));
  RunRatio independent = independent_ratio(runs, runs);
  // sqrt((0.6 / 0.4 + 1/4) / (1/4))
  EXPECT_NEAR(one_session.standard_error / independent.standard_error, std::sqrt(7), 1e-9);
}

TEST(RunRatio, SpreadBetweenSessionsCounts) {
  // Two sessions a side, runs within each the same: only the sessions differ.
  std::vector<Measurement> a = {{.start_s = 0, .run_medians_s = {1, 1}, .steps_s = {}},
                                {.start_s = kHour, .run_medians_s = {1.1, 1.1}, .steps_s = {}}};
  std::vector<Measurement> b = a;
  for (Measurement& one : b) one.start_s += 10 * kHour;
  RunRatio found = ratio_of_runs(a, b);
  EXPECT_EQ(found.sessions_a, 2U);
  EXPECT_NEAR(found.standard_error, std::log(1.1) / std::sqrt(2), 1e-12);
  EXPECT_NEAR(found.degrees, 2, 1e-12);
}

TEST(RunRatio, ASingleRunTakesTheOtherSidesSpread) {
  Values baseline = {1, 1.02, 0.98, 1.01, 0.99};
  std::vector<Measurement> many = apart(baseline, 0, kHour);
  std::vector<Measurement> single = repeats({1.1}, 100 * kHour);
  RunRatio found = ratio_of_runs(many, single);
  ASSERT_TRUE(found.interval.has_value());
  EXPECT_EQ(found.degrees, 4);
  RunRatio turned = ratio_of_runs(single, many);
  EXPECT_NEAR(turned.interval->high, 1 / found.interval->low, 1e-9);
  EXPECT_NEAR(*turned.p_value, *found.p_value, 1e-12);
  // One baseline session with repeats serves, too.
  EXPECT_TRUE(ratio_of_runs(repeats(baseline), single).interval.has_value());
}

TEST(RunRatio, OneRunASideHasNoInterval) {
  std::vector<Measurement> a = repeats({1.0});
  std::vector<Measurement> b = repeats({1.1}, kHour);
  RunRatio blind = ratio_of_runs(a, b);
  EXPECT_FALSE(blind.interval.has_value());
  EXPECT_FALSE(blind.p_value.has_value());
  a[0].steps_s = {{1, 1.01, 0.99, 1, 1.02, 0.98, 1, 1.01}};
  b[0].steps_s = {{1.1, 1.11, 1.09, 1.1, 1.12, 1.08, 1.1, 1.11}};
  RunRatio steps = ratio_of_runs(a, b);
  EXPECT_EQ(steps.method, RatioMethod::kSteps);
  EXPECT_FALSE(steps.interval.has_value());
  EXPECT_LT(*steps.p_value, 1e-6);
  a[0].steps_s = {{1}};
  RunRatio few = ratio_of_runs(a, b);
  EXPECT_FALSE(few.p_value.has_value());
  EXPECT_NE(few.how.find("too few"), std::string::npos);
}

TEST(RunRatio, HostileTimesAreNamed) {
  std::vector<Measurement> good = repeats({1, 1});
  for (double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(ratio_of_runs(good, repeats({1, bad})), UserError);
    EXPECT_THROW(ratio_of_runs(repeats({bad, 1}), good), UserError);
    EXPECT_THROW(steps_ratio(Values{1, bad}, Values{1, 1}), UserError);
    EXPECT_THROW(independent_ratio(Values{1, bad}, Values{1, 1}), UserError);
  }
  EXPECT_THROW(ratio_of_runs({}, good), UserError);
  EXPECT_THROW(ratio_of_runs(good, repeats({})), UserError);
  EXPECT_THROW(ratio_of_runs(good, good, 1), UserError);
  EXPECT_THROW(steps_ratio({}, Values{1}), UserError);
  try {
    ratio_of_runs(good, repeats({1, -2}, kHour));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "a comparison needs step times above 0, and one is -2 s");
  }
}

TEST(RunRatio, ConstantTimes) {
  Values same(10, 2.0);
  RunRatio equal = ratio_of_runs(repeats(same), repeats(same, kHour));
  EXPECT_EQ(equal.interval, (Interval{1, 1}));
  EXPECT_EQ(equal.p_value, 1);
  EXPECT_EQ(*steps_ratio(same, Values(10, 1.0)).p_value, 0);
}

TEST(BlockedRatio, MissingMembersLeaveTheBlockOut) {
  using Blocks = std::vector<std::optional<double>>;
  Blocks a = {1.0, std::nullopt, 2.0, 4.0};
  Blocks b = {2.0, 5.0, 4.0, std::nullopt};
  RatioEstimate found = blocked_ratio_interval95(a, b);
  EXPECT_NEAR(found.ratio, 0.5, 1e-12);
  EXPECT_EQ(found.observations, 2U);
  EXPECT_THROW(blocked_ratio_interval95(a, Blocks{1.0}), UserError);
  EXPECT_THROW(blocked_ratio_interval95(Blocks{std::nullopt}, Blocks{1.0}), UserError);
}

}  // namespace
}  // namespace ljtrain::cnp
