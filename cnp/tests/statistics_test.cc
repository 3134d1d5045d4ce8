#include "cnp/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include "base/errors.h"
#include "base/json.h"
#include "cnp/steady_state.h"

namespace ljtrain::cnp {
namespace {

using base::Json;
using base::UserError;
using Values = std::vector<double>;

// tests/test_statistics_reference.py derives these with NumPy and SciPy.
const Json& reference() {
  static const Json json = [] {
    std::ifstream file(std::string(LJTRAIN_SOURCE_DIR) +
                       "/cnp/tests/data/statistics_reference.json");
    return Json::parse(file);
  }();
  return json;
}

void expect_close(double found, double expected, const std::string& what) {
  EXPECT_NEAR(found, expected, 1e-10 * std::abs(expected) + 1e-13) << what;
}

void expect_close(const std::optional<Interval>& found, const Json& expected,
                  const std::string& what) {
  ASSERT_TRUE(found.has_value()) << what;
  expect_close(found->low, expected[0], what);
  expect_close(found->high, expected[1], what);
}

TEST(Statistics, AgreeWithNumpy) {
  for (const auto& [name, expected] : reference()["numpy"].items()) {
    auto values = expected["values"].get<Values>();
    for (const Json& pair : expected["quantiles"]) {
      expect_close(quantile(values, pair[0]), pair[1], name + " quantile " + pair[0].dump());
    }
    expect_close(median(values), expected["median"], name);
    expect_close(mean(values), expected["mean"], name);
    expect_close(*standard_deviation(values), expected["standard_deviation"], name);
    expect_close(median_absolute_deviation(values), expected["median_absolute_deviation"], name);
    expect_close(lag1_autocorrelation(values), expected["lag1_autocorrelation"], name);
    expect_close(effective_sample_size(values), expected["effective_sample_size"], name);
  }
}

TEST(Statistics, StudentTAgreesWithScipy) {
  for (const Json& row : reference()["scipy"]["student_t_cdf"]) {
    expect_close(student_t_cdf(row[0], row[1]), row[2], row.dump());
  }
  for (const Json& row : reference()["scipy"]["student_t_quantile"]) {
    expect_close(student_t_quantile(row[0], row[1]), row[2], row.dump());
  }
}

TEST(Statistics, StudentTClosedForms) {
  // One degree of freedom is Cauchy's law, two have an algebraic one.
  for (double t : {-50.0, -1.0, -1e-9, 0.0, 0.3, 7.0}) {
    expect_close(student_t_cdf(t, 1), 0.5 + std::atan(t) / std::acos(-1.0), "Cauchy");
    expect_close(student_t_cdf(t, 2), 0.5 + t / (2 * std::sqrt(2 + t * t)), "two");
  }
  EXPECT_EQ(student_t_cdf(HUGE_VAL, 3), 1);
  EXPECT_EQ(student_t_cdf(-HUGE_VAL, 3), 0);
  for (double bad : {0.0, -1.0, std::nan("")}) {
    EXPECT_THROW(student_t_cdf(0, bad), UserError);
    EXPECT_THROW(student_t_quantile(0.5, bad), UserError);
  }
  for (double bad : {0.0, 1.0, -0.1, 1.1, std::nan("")}) {
    EXPECT_THROW(student_t_quantile(bad, 3), UserError);
  }
  EXPECT_THROW(student_t_cdf(std::nan(""), 3), UserError);
}

TEST(Statistics, IntervalsAgreeWithScipy) {
  for (const auto& [name, expected] : reference()["scipy"]["interval95_of_runs"].items()) {
    auto values = reference()["numpy"][name]["values"].get<Values>();
    expect_close(interval95_of_runs(values), expected, name);
  }
  for (const Json& pair : reference()["scipy"]["ratios"]) {
    auto a = pair["a"].get<Values>();
    auto b = pair["b"].get<Values>();
    RatioEstimate welch = ratio_interval95(a, b);
    expect_close(welch.ratio, pair["ratio"], "ratio");
    expect_close(welch.ci95, pair["welch"], "Welch");
    EXPECT_EQ(welch.observations, a.size() + b.size());
    if (!pair.contains("paired")) continue;
    RatioEstimate paired = paired_ratio_interval95(a, b);
    expect_close(paired.ratio, pair["ratio"], "ratio");
    expect_close(paired.ci95, pair["paired"], "paired");
  }
}

TEST(Statistics, OnOffRatioAgreesWithLeastSquares) {
  const Json& expected = reference()["scipy"]["on_off"];
  std::vector<Block> blocks;
  for (const Json& block : expected["blocks"]) {
    blocks.push_back({block["run"], block["on"], block["seconds"]});
  }
  std::optional<RatioEstimate> found = on_off_ratio(blocks);
  ASSERT_TRUE(found.has_value());
  expect_close(found->ratio, expected["ratio"], "ratio");
  expect_close(found->ci95, expected["ci95"], "interval");
  EXPECT_EQ(found->observations, blocks.size());
}

TEST(Statistics, TooFewValues) {
  Values none;
  Values one = {1.5};
  EXPECT_THROW(quantile(none, 0.5), UserError);
  EXPECT_THROW(median(none), UserError);
  EXPECT_THROW(mean(none), UserError);
  EXPECT_THROW(standard_deviation(none), UserError);
  EXPECT_THROW(median_absolute_deviation(none), UserError);
  EXPECT_THROW(interval95_of_runs(none), UserError);
  EXPECT_THROW(ratio_interval95(none, one), UserError);
  EXPECT_THROW(paired_ratio_interval95(none, none), UserError);
  EXPECT_THROW(check_loss_falls(none), UserError);
  EXPECT_THROW(effective_sample_size(none), UserError);
  EXPECT_EQ(quantile(one, 0.2), 1.5);
  EXPECT_EQ(standard_deviation(one), std::nullopt);
  EXPECT_EQ(interval95_of_runs(one), std::nullopt);
  EXPECT_EQ(ratio_interval95(one, Values{1.0, 1.0}).ci95, std::nullopt);
  EXPECT_EQ(ratio_interval95(one, Values{1.0, 1.0}).ratio, 1.5);
  EXPECT_EQ(paired_ratio_interval95(one, one), (RatioEstimate{1, std::nullopt, 1}));
  EXPECT_EQ(effective_sample_size(one), 1);
  EXPECT_EQ(lag1_autocorrelation(none), 0);
  EXPECT_FALSE(check_loss_falls(one).falls);
}

TEST(Statistics, NotFiniteIsRefusedAndNamed) {
  for (double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    Values values = {1, 2, bad, 4};
    EXPECT_THROW(quantile(values, 0.5), UserError);
    EXPECT_THROW(mean(values), UserError);
    EXPECT_THROW(interval95_of_runs(values), UserError);
    EXPECT_THROW(ratio_interval95(values, Values{1, 2}), UserError);
    EXPECT_THROW(paired_ratio_interval95(values, values), UserError);
    EXPECT_THROW(blocks_of_steps(values, {true, true, false, false}), UserError);
    EXPECT_THROW(check_loss_falls(values), UserError);
    EXPECT_THROW(find_warmup(values), UserError);
    EXPECT_THROW(effective_sample_size(values), UserError);
    EXPECT_THROW(lag1_autocorrelation(values), UserError);
  }
  try {
    mean(Values{1, std::nan("")});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "value 1 of 2 is not a finite number");
  }
}

TEST(Statistics, BadArguments) {
  Values two = {1, 2};
  for (double p : {-0.01, 1.01, std::nan("")}) EXPECT_THROW(quantile(two, p), UserError);
  EXPECT_THROW(ratio_interval95(two, Values{1, 0}), UserError);
  EXPECT_THROW(ratio_interval95(two, Values{1, -1}), UserError);
  EXPECT_THROW(paired_ratio_interval95(two, Values{1}), UserError);
  EXPECT_THROW(blocks_of_steps(two, {true}), UserError);
}

TEST(Statistics, ConstantsGiveAPoint) {
  Values same = {3, 3, 3};
  EXPECT_EQ(interval95_of_runs(same), (Interval{3, 3}));
  EXPECT_EQ(ratio_interval95(same, same).ci95, (Interval{1, 1}));
  EXPECT_EQ(paired_ratio_interval95(same, same).ci95, (Interval{1, 1}));
  EXPECT_EQ(effective_sample_size(same), 3);
}

TEST(Statistics, LargeValuesDoNotOverflow) {
  double large = std::numeric_limits<double>::max() / 4;
  EXPECT_EQ(median(Values{large, large}), large);
  EXPECT_EQ(mean(Values{1e16, 1, -1e16}), 1.0 / 3);
}

TEST(Blocks, CutWhereTheSwitchChanges) {
  Values seconds = {9, 1, 2, 3, 4, 5, 6, 7};
  std::vector<Block> blocks =
      blocks_of_steps(seconds, {false, true, true, true, false, false, false, true}, 4);
  ASSERT_EQ(blocks.size(), 2U);  // the lone first and last are shorter than half of 3
  EXPECT_EQ(blocks[0].run, 4U);
  EXPECT_TRUE(blocks[0].on);
  EXPECT_EQ(blocks[0].seconds, 2);
  EXPECT_FALSE(blocks[1].on);
  EXPECT_EQ(blocks[1].seconds, 5);
  EXPECT_TRUE(blocks_of_steps({}, {}).empty());
}

TEST(Blocks, DriftIsNotTakenForTheSwitch) {
  std::vector<Block> blocks;
  blocks.reserve(8);
  for (int i = 0; i < 8; ++i) {
    blocks.push_back({0, i % 2 == 0, std::exp(0.1 * i + (i % 2 == 0 ? 0.01 : 0))});
  }
  std::optional<RatioEstimate> found = on_off_ratio(blocks);
  ASSERT_TRUE(found.has_value());
  EXPECT_NEAR(found->ratio, std::exp(0.01), 1e-12);
  EXPECT_NEAR(found->ci95->high - found->ci95->low, 0, 1e-9);
}

TEST(Blocks, TooFewOrOfOneKind) {
  std::vector<Block> blocks = {{0, true, 1}, {0, false, 1}, {0, true, 1}};
  EXPECT_EQ(on_off_ratio(blocks), std::nullopt);
  EXPECT_EQ(on_off_ratio({}), std::nullopt);
  std::vector<Block> one_kind(6, Block{0, true, 1});
  EXPECT_EQ(on_off_ratio(one_kind), std::nullopt);
  // Such a run does not spoil another one.
  for (int i = 0; i < 6; ++i) one_kind.push_back({1, i % 2 == 0, i % 2 == 0 ? 1.1 : 1.0});
  EXPECT_NEAR(on_off_ratio(one_kind)->ratio, 1.1, 1e-12);
}

TEST(Loss, FallsOnlyWhenBeyondItsNoise) {
  Values falling = {9.7, 9.6, 9.5, 9.4, 9.3, 8, 7, 6, 5.5, 5.4, 5.3, 5.2, 5.1};
  LossFall fall = check_loss_falls(falling);
  EXPECT_NEAR(fall.first, 9.5, 1e-12);
  EXPECT_NEAR(fall.last, 5.3, 1e-12);
  // s = sqrt(0.025) on both sides, k = 5: sqrt(2 x 0.025 / 5).
  EXPECT_NEAR(fall.standard_error, 0.1, 1e-12);
  EXPECT_TRUE(fall.falls);
  EXPECT_FALSE(check_loss_falls(Values{9.7, 9.5, 9.6, 9.8, 9.6, 9.5, 9.7, 9.6}).falls);
  EXPECT_FALSE(check_loss_falls(Values(falling.rbegin(), falling.rend())).falls);
  EXPECT_FALSE(check_loss_falls(Values(10, 5.0)).falls);
  EXPECT_FALSE(check_loss_falls(Values{3, 2, 1}).falls);  // windows of one step show no noise
}

}  // namespace
}  // namespace ljtrain::cnp
