#include "cnp/steady_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "synthetic_steps.h"

namespace ljtrain::cnp {
namespace {

using Values = std::vector<double>;

constexpr int kTrials = 1000;
constexpr std::size_t kSteps = 25;
constexpr double kNoise = 0.01;

// How often find_warmup() takes `truth` steps, at most a quarter of the run more, fewer; and how
// often it calls the rest steady. Fractions.
struct Outcome {
  double exact = 0;
  double within_quarter = 0;
  double under = 0;
  double steady = 0;
};

// A kind of warm-up, put on top of steady steps.
using Shape = std::function<void(Values&)>;

Outcome outcome_of(std::size_t truth, double phi, const Shape& shape, std::size_t count = kSteps) {
  SyntheticSteps synthetic(1);
  Outcome outcome;
  for (int trial = 0; trial < kTrials; ++trial) {
    Values steps = synthetic.steady(count, 1.5, kNoise, phi);
    shape(steps);
    Warmup found = find_warmup(steps);
    EXPECT_LE(found.warmup_steps, count / 2);
    outcome.exact += found.warmup_steps == truth ? 1 : 0;
    outcome.under += found.warmup_steps < truth ? 1 : 0;
    bool within = found.warmup_steps >= truth && found.warmup_steps <= truth + count / 4;
    outcome.within_quarter += within ? 1 : 0;
    outcome.steady += found.steady ? 1 : 0;
  }
  for (double* part : {&outcome.exact, &outcome.within_quarter, &outcome.under, &outcome.steady}) {
    *part /= kTrials;
  }
  return outcome;
}

void none(Values& /*steps*/) {}
void cold_first(Values& steps) { steps[0] *= 3; }
void slightly_cold_first(Values& steps) { steps[0] *= 1.1; }
void two_levels(Values& steps) {
  steps[0] *= 6;
  for (std::size_t i = 1; i < 5; ++i) steps[i] *= 1.15;
}
void late_outlier(Values& steps) { steps[steps.size() - 3] *= 3; }
void cold_and_late_outlier(Values& steps) {
  cold_first(steps);
  late_outlier(steps);
}
void recompiled(Values& steps) {
  steps[0] *= 6;
  steps[3] *= 4;
}

struct Case {
  const char* name;
  Shape shape;
  std::size_t truth;
  double exact;  // the least fraction, without correlation of steps
};

class FindWarmup : public testing::TestWithParam<Case> {};

// Measured: docs/statistics.md. The bounds leave 4 standard errors of 1000 trials.
TEST_P(FindWarmup, IndependentSteps) {
  Outcome outcome = outcome_of(GetParam().truth, 0, GetParam().shape);
  EXPECT_GT(outcome.exact, GetParam().exact);
  EXPECT_GT(outcome.within_quarter, 0.93);
  EXPECT_LT(outcome.under, 0.03);
  EXPECT_GT(outcome.steady, 0.99);
}

TEST_P(FindWarmup, CorrelatedSteps) {
  Outcome outcome = outcome_of(GetParam().truth, 0.6, GetParam().shape);
  EXPECT_GT(outcome.exact, GetParam().exact - 0.13);
  EXPECT_GT(outcome.within_quarter, 0.85);
  EXPECT_LT(outcome.under, 0.03);
  EXPECT_GT(outcome.steady, 0.98);
}

INSTANTIATE_TEST_SUITE_P(Shapes, FindWarmup,
                         testing::Values(Case{"none", none, 0, 0.84},
                                         Case{"cold_first", cold_first, 1, 0.83},
                                         Case{"slightly_cold", slightly_cold_first, 1, 0.83},
                                         Case{"two_levels", two_levels, 5, 0.81},
                                         Case{"recompiled", recompiled, 4, 0.80},
                                         Case{"late_outlier", late_outlier, 0, 0.98},
                                         Case{"cold_and_outlier", cold_and_late_outlier, 1, 0.97}),
                         [](const auto& shape) { return std::string(shape.param.name); });

// The decay never ends; what is left of it must be small beside the noise.
TEST(FindWarmupShapes, DecayIsCutWhereNoiseTakesOver) {
  for (double phi : {0.0, 0.6}) {
    SyntheticSteps synthetic(2);
    double worst = 0;
    double sum = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      Values steps = synthetic.steady(50, 1.5, kNoise, phi);
      auto tail = [](std::size_t i) { return 0.5 * std::exp(-static_cast<double>(i) / 3); };
      for (std::size_t i = 0; i < steps.size(); ++i) steps[i] *= 1 + tail(i);
      double left = tail(find_warmup(steps).warmup_steps);
      worst = std::max(worst, left);
      sum += left;
    }
    EXPECT_LT(sum / kTrials, 2 * kNoise);
    EXPECT_LT(worst, 6 * kNoise);
  }
}

TEST(FindWarmupShapes, DriftIsNotSteady) {
  for (double phi : {0.0, 0.6}) {
    Outcome drift = outcome_of(0, phi, [](Values& steps) {
      for (std::size_t i = 0; i < steps.size(); ++i) steps[i] *= 1 + 0.01 * static_cast<double>(i);
    });
    EXPECT_LT(drift.steady, 0.02);
    Outcome slow = outcome_of(
        0, phi,
        [](Values& steps) {
          for (std::size_t i = 0; i < steps.size(); ++i) {
            steps[i] *= 1 + 0.002 * static_cast<double>(i);
          }
        },
        200);
    EXPECT_LT(slow.steady, 0.02);
  }
}

// A shift too late to leave out is no steady state.
TEST(FindWarmupShapes, LateShiftIsNotSteady) {
  Outcome shift = outcome_of(0, 0, [](Values& steps) {
    for (std::size_t i = 2 * steps.size() / 3; i < steps.size(); ++i) steps[i] *= 1.2;
  });
  EXPECT_LT(shift.steady, 0.02);
}

TEST(FindWarmupShapes, LongRunsAreSeldomCut) {
  EXPECT_GT(outcome_of(0, 0, none, 200).exact, 0.97);
  EXPECT_GT(outcome_of(0, 0.6, none, 200).exact, 0.91);
}

TEST(FindWarmupShapes, NoiseAlone) {
  SyntheticSteps synthetic(3);
  for (int trial = 0; trial < kTrials; ++trial) {
    Values steps(30);
    for (double& step : steps) step = std::exp(synthetic.normal());  // spread as large as the level
    EXPECT_LE(find_warmup(steps).warmup_steps, 15U);
  }
}

TEST(FindWarmupShapes, ShortRuns) {
  EXPECT_EQ(find_warmup({}), (Warmup{0, false}));
  EXPECT_EQ(find_warmup(Values{5}), (Warmup{0, false}));
  EXPECT_EQ(find_warmup(Values{5, 1}), (Warmup{1, false}));
  EXPECT_EQ(find_warmup(Values{9, 1, 1}), (Warmup{1, false}));
  EXPECT_EQ(find_warmup(Values{1, 1, 1}), (Warmup{0, false}));
  EXPECT_EQ(find_warmup(Values{9, 1, 1, 1, 1}), (Warmup{1, true}));
}

TEST(FindWarmupShapes, Constants) {
  for (double value : {0.0, 1.5, -2.0}) {
    EXPECT_EQ(find_warmup(Values(20, value)), (Warmup{0, true})) << value;
  }
  Values cold(20, 1.0);
  cold[0] = 30;
  EXPECT_EQ(find_warmup(cold), (Warmup{1, true}));
  Values late(20, 1.0);
  late[18] = 30;
  EXPECT_EQ(find_warmup(late), (Warmup{0, true}));
}

TEST(FindWarmupShapes, NeverMoreThanAsked) {
  Values steps = {9, 9, 9, 9, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(find_warmup(steps).warmup_steps, 4U);
  EXPECT_LE(find_warmup(steps, 0.3).warmup_steps, 3U);
  EXPECT_EQ(find_warmup(steps, 0).warmup_steps, 0U);
  for (double bad : {-0.1, 0.51, std::nan("")}) {
    EXPECT_THROW(find_warmup(steps, bad), base::UserError);
  }
}

TEST(FindWarmupShapes, UnitDoesNotMatter) {
  SyntheticSteps synthetic(4);
  for (int trial = 0; trial < 100; ++trial) {
    Values steps = synthetic.steady(kSteps, 1.5, kNoise, 0.3);
    two_levels(steps);
    Warmup seconds = find_warmup(steps);
    for (double& step : steps) step *= 1024;
    EXPECT_EQ(find_warmup(steps), seconds);
  }
}

TEST(EffectiveSampleSize, FollowsTheTheoryOfAr1) {
  for (double phi : {0.0, 0.3, 0.6, 0.9}) {
    SyntheticSteps synthetic(5);
    Values steps = synthetic.steady(20000, 1.5, kNoise, phi);
    double expected = 20000 * (1 - phi) / (1 + phi);
    EXPECT_NEAR(effective_sample_size(steps) / expected, 1, 0.2) << phi;
    EXPECT_NEAR(lag1_autocorrelation(steps), phi, 0.03);
  }
}

TEST(EffectiveSampleSize, StaysBetweenOneAndN) {
  Values alternating(40);
  for (std::size_t i = 0; i < alternating.size(); ++i) alternating[i] = i % 2 == 0 ? 1 : 2;
  EXPECT_EQ(effective_sample_size(alternating), 40);
  Values ramp(40);
  for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<double>(i);
  EXPECT_GE(effective_sample_size(ramp), 1);
  EXPECT_LT(effective_sample_size(ramp), 5);
}

}  // namespace
}  // namespace ljtrain::cnp
