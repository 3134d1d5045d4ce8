// Whether the 95 % intervals hold the truth 95 times in 100, on step times as runs show them: steps
// of one run are correlated (AR(1)) and each run has a level of its own. The figures are those of
// docs/statistics.md; the bounds leave room for 4 standard errors of the simulation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cnp/run_ratio.h"
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
double coverage(double truth, MakeInterval interval, int trials = kTrials) {
  int held = 0;
  for (int trial = 0; trial < trials; ++trial) {
    Interval found = interval();
    held += found.low <= truth && truth <= found.high ? 1 : 0;
  }
  return static_cast<double>(held) / trials;
}

// LJTRAIN_FULL_STATISTICS=1 takes as many trials as docs/statistics.md tells of.
int trials_or(int quick) {
  return std::getenv("LJTRAIN_FULL_STATISTICS") != nullptr ? kTrials : quick;
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

// What ratio_of_runs() does with sides that ran one after the other in one session each, when the
// session is shared as kSessionShare says, and when it is not shared at all (then it is wider than
// need be, never narrower).
TEST_P(Coverage, RatioOfSessions) {
  Simulation simulation(GetParam());
  for (double shared : {0.0, kSessionShare}) {
    for (std::size_t count : {2U, 5U, 10U}) {
      // Spread of medians within a session: of the run's level and of its steps (about kStepNoise /
      // 3 of a median); the session's own is in proportion.
      double session = std::sqrt(shared / (1 - shared)) * std::hypot(kRunNoise, kStepNoise / 3);
      double covered = coverage(
          1.2,
          [&] {
            Measurement a{.start_s = 0, .run_medians_s = {}, .steps_s = {}};
            Measurement b{.start_s = 86'400, .run_medians_s = {}, .steps_s = {}};
            a.run_medians_s =
                simulation.runs(count, 1.2 * kLevel * std::exp(session * simulation.normal()));
            b.run_medians_s =
                simulation.runs(count, kLevel * std::exp(session * simulation.normal()));
            return *ratio_of_runs(std::span(&a, 1), std::span(&b, 1)).interval;
          },
          trials_or(1500));
      report(("sessions of " + std::to_string(count) + " runs, shared " +
              std::to_string(static_cast<int>(100 * shared)) + " %")
                 .c_str(),
             GetParam(), covered);
      EXPECT_GT(covered, 0.92);
    }
  }
}

// The test of the steps of two single runs calls equal runs different in 5 % of trials: with noise
// of any correlation, with heavy tails, and less often with a drift.
TEST_P(Coverage, StepsOfTwoRuns) {
  struct Kind {
    const char* name;
    bool heavy_tails;
    double drift;  // over the run
  };
  for (const Kind& kind :
       {Kind{"steps of two runs", false, 0}, Kind{"the same, heavy tails", true, 0},
        Kind{"the same, 4 % of drift", false, 0.04}}) {
    Simulation simulation(GetParam(), 0);
    int accepted = 0;
    const int pairs = trials_or(1500);
    auto run = [&] {
      std::vector<double> steps = simulation.run();
      for (std::size_t i = 0; i < steps.size(); ++i) {
        steps[i] *= 1 + kind.drift * static_cast<double>(i) / static_cast<double>(steps.size());
        // One step in 20 is held up by up to a third of its time.
        if (kind.heavy_tails && std::abs(simulation.normal()) > 1.96) {
          steps[i] *= 1 + 0.1 * std::abs(simulation.normal());
        }
      }
      return steps;
    };
    for (int pair = 0; pair < pairs; ++pair) {
      accepted += *steps_ratio(run(), run()).p_value >= 0.05 ? 1 : 0;
    }
    double rate = static_cast<double>(accepted) / pairs;
    report(kind.name, GetParam(), rate);
    EXPECT_GT(rate, 0.91);
  }
}

INSTANTIATE_TEST_SUITE_P(Correlation, Coverage, testing::Values(0.0, 0.6));

}  // namespace
}  // namespace ljtrain::cnp
