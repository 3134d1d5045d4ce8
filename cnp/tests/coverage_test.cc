// Whether the 95 % intervals hold the truth 95 times in 100, on step times as runs show them: steps
// of one run are correlated (AR(1)) and each run has a level of its own. The figures are those of
// docs/statistics.md; the bounds leave room for 4 standard errors of the simulation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cnp/statistics.h"
#include "synthetic_steps.h"

namespace ljtrain::cnp {
namespace {

constexpr int kTrials = 10000;
constexpr double kLevel = 1.5;       // seconds
constexpr double kStepNoise = 0.02;  // of one step
constexpr double kRunNoise = 0.009;  // of one run's level: the spread measured on one machine
constexpr std::size_t kSteps = 20;

class Simulation {
 public:
  explicit Simulation(double phi, double run_noise = kRunNoise)
      : phi_(phi), run_noise_(run_noise), synthetic_(20261130) {}

  // The steps of one run.
  std::vector<double> run(double level = kLevel) {
    return synthetic_.steady(kSteps, level * std::exp(run_noise_ * synthetic_.normal()), kStepNoise,
                             phi_);
  }
  // The medians of `count` runs.
  std::vector<double> runs(std::size_t count, double level = kLevel) {
    std::vector<double> medians;
    for (std::size_t i = 0; i < count; ++i) medians.push_back(median(run(level)));
    return medians;
  }
  double normal() { return synthetic_.normal(); }

 private:
  double phi_;
  double run_noise_;
  SyntheticSteps synthetic_;
};

// The fraction of trials in which interval() holds `truth`.
template <typename MakeInterval>
double coverage(double truth, MakeInterval interval) {
  int held = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    Interval found = interval();
    held += found.low <= truth && truth <= found.high ? 1 : 0;
  }
  return static_cast<double>(held) / kTrials;
}

void report(const char* what, double phi, double covered) {
  std::printf("coverage of %-40s phi %.1f: %.1f %%\n", what, phi, 100 * covered);
}

class Coverage : public testing::TestWithParam<double> {};

TEST_P(Coverage, IntervalOfRuns) {
  for (std::size_t count : {2U, 3U, 5U, 10U}) {
    Simulation simulation(GetParam());
    double covered = coverage(kLevel, [&] { return *interval95_of_runs(simulation.runs(count)); });
    report(("interval95_of_runs, runs: " + std::to_string(count)).c_str(), GetParam(), covered);
    EXPECT_GT(covered, 0.93);
    EXPECT_LT(covered, 0.97);
  }
}

// Why the unit is the run: the same runs, each step taken for an observation of its own.
TEST_P(Coverage, IntervalOfPooledStepsIsWrong) {
  Simulation simulation(GetParam());
  double covered = coverage(kLevel, [&] {
    std::vector<double> pooled;
    for (int run = 0; run < 5; ++run) {
      for (double step : simulation.run()) pooled.push_back(step);
    }
    return *interval95_of_runs(pooled);
  });
  report("pooled steps of 5 runs", GetParam(), covered);
  EXPECT_LT(covered, 0.7);
}

// Steps of one run, even without run effects, once they are correlated.
TEST(CoverageOfSteps, CorrelationAloneMakesItWrong) {
  Simulation simulation(0.6, 0);
  double covered = coverage(kLevel, [&] { return *interval95_of_runs(simulation.run()); });
  report("steps of one run, no run effect", 0.6, covered);
  EXPECT_LT(covered, 0.8);
}

TEST_P(Coverage, RatioOfRuns) {
  for (const auto& sizes : {std::pair<std::size_t, std::size_t>{5, 5}, {3, 10}}) {
    Simulation simulation(GetParam());
    double covered = coverage(1.2, [&] {
      return *ratio_interval95(simulation.runs(sizes.first, 1.2 * kLevel),
                               simulation.runs(sizes.second))
                  .ci95;
    });
    report("ratio_interval95", GetParam(), covered);
    EXPECT_GT(covered, 0.93);
    EXPECT_LT(covered, 0.975);
  }
}

// Pairs share the machine's mood (5 %), which unpaired runs would have to average out.
TEST_P(Coverage, RatioOfPairs) {
  Simulation simulation(GetParam());
  double paired_width = 0;
  double unpaired_width = 0;
  double covered = coverage(1.2, [&] {
    std::vector<double> a;
    std::vector<double> b;
    for (int block = 0; block < 6; ++block) {
      double mood = kLevel * std::exp(0.05 * simulation.normal());
      a.push_back(median(simulation.run(1.2 * mood)));
      b.push_back(median(simulation.run(mood)));
    }
    Interval unpaired = *ratio_interval95(a, b).ci95;
    Interval paired = *paired_ratio_interval95(a, b).ci95;
    paired_width += paired.high - paired.low;
    unpaired_width += unpaired.high - unpaired.low;
    return paired;
  });
  report("paired_ratio_interval95", GetParam(), covered);
  EXPECT_GT(covered, 0.93);
  EXPECT_LT(covered, 0.97);
  EXPECT_LT(paired_width, unpaired_width / 2);
}

// Two runs of 8 blocks of 5 steps with a drift of 4 % over each: the effect of the switch is 1 %.
TEST_P(Coverage, OnOffBlocks) {
  Simulation simulation(GetParam());
  double covered = coverage(1.01, [&] {
    std::vector<Block> blocks;
    for (std::size_t run = 0; run < 2; ++run) {
      std::vector<double> steps;
      std::vector<bool> on;
      for (int part = 0; part < 2; ++part) {
        for (double step : simulation.run()) steps.push_back(step);
      }
      for (std::size_t i = 0; i < steps.size(); ++i) {
        on.push_back(i / 5 % 2 == 0);
        steps[i] *= (1 + 0.001 * static_cast<double>(i)) * (on[i] ? 1.01 : 1);
      }
      for (const Block& block : blocks_of_steps(steps, on, run)) blocks.push_back(block);
    }
    return *on_off_ratio(blocks)->ci95;
  });
  report("on_off_ratio", GetParam(), covered);
  EXPECT_GT(covered, 0.93);
}

INSTANTIATE_TEST_SUITE_P(Correlation, Coverage, testing::Values(0.0, 0.6));

}  // namespace
}  // namespace ljtrain::cnp
