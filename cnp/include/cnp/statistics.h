// Estimators for step times: what ljperf reports and what comparisons rest on.
//
// Step times are positive, skewed, and correlated within one run (one process, one warm-up, one
// placement in memory). So a run counts as one observation, ratios are compared on a log scale, and
// locations are medians. docs/statistics.md gives the formulae, the reasons and the coverage that
// was measured.
//
// Every function throws base::UserError when a value is NaN or infinite, and names its position.
// Unless stated otherwise, an empty list throws base::UserError too. Time is linear in the number
// of values unless stated. Units: whatever the values have; ratios have none.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace ljtrain::cnp {

struct Interval {
  double low = 0;
  double high = 0;
  bool operator==(const Interval&) const = default;
};

// The value below which a fraction `p` (0 to 1) lies, with linear interpolation between order
// statistics: type 7 of Hyndman and Fan (1996), NumPy's and R's default. UserError for another p.
double quantile(std::span<const double> values, double p);
// quantile(values, 0.5).
double median(std::span<const double> values);
double mean(std::span<const double> values);
// Sample standard deviation, divisor n - 1 (two passes); nullopt for fewer than 2 values.
std::optional<double> standard_deviation(std::span<const double> values);
// Median absolute deviation from the median, unscaled: 1.4826 x it estimates sigma of a normal.
double median_absolute_deviation(std::span<const double> values);

// Student's t with `degrees` > 0 degrees of freedom (any real; UserError otherwise): distribution
// function, and quantile for 0 < p < 1 (UserError otherwise). Relative error below 1e-10.
double student_t_cdf(double t, double degrees);
double student_t_quantile(double p, double degrees);

// 95 % t interval of the expected value of one run, from one number a run (its median step):
// mean +- t(0.975, n-1) s / sqrt(n). nullopt for fewer than 2 runs: the spread of the steps of one
// run says nothing about the next run.
std::optional<Interval> interval95_of_runs(std::span<const double> runs);

struct RatioEstimate {
  double ratio = 1;              // exp of the mean difference of logarithms: a / b
  std::optional<Interval> ci95;  // nullopt when there are too few observations
  std::size_t observations = 0;  // runs, pairs or blocks used
  bool operator==(const RatioEstimate&) const = default;
};

// a / b from independent runs of two kinds: Welch's t interval (Welch 1947, Satterthwaite's degrees
// of freedom) of the difference of mean logarithms. ci95 is nullopt when a side has fewer than 2
// runs. UserError for values <= 0.
RatioEstimate ratio_interval95(std::span<const double> a, std::span<const double> b);

// The same from pairs that ran side by side (one block each): t interval of the mean of
// log(a[i] / b[i]). Noise that both members of a pair share cancels. UserError when the sizes
// differ.
RatioEstimate paired_ratio_interval95(std::span<const double> a, std::span<const double> b);

// A block of consecutive steps with something switched on or off; seconds: the median step.
struct Block {
  std::size_t run = 0;  // blocks of one run are in the order in which they ran
  bool on = false;
  double seconds = 0;
};

// Cuts the steps of one run where the switch changes. A first or last block shorter than half the
// longest is left out. Empty input gives no blocks; sizes that differ throw UserError.
std::vector<Block> blocks_of_steps(std::span<const double> seconds, const std::vector<bool>& on,
                                   std::size_t run = 0);

// Step time on / off from interleaved blocks, what slow drift would add removed: least squares of
// log(seconds) on the switch, with a level and a linear trend of its own in each run; t interval
// with blocks - 2 runs - 1 degrees of freedom. A run with fewer than 4 blocks, or with blocks of
// one kind only, is left out; nullopt when none is left. UserError for seconds <= 0.
std::optional<RatioEstimate> on_off_ratio(std::span<const Block> blocks);

struct LossFall {
  double first = 0;           // mean of the first k losses
  double last = 0;            // mean of the last k losses
  double standard_error = 0;  // of their difference: sqrt((s_first^2 + s_last^2) / k)
  bool falls = false;         // first - last > 3 standard errors, and k >= 2
};

// Whether training made the loss fall; k = min(window, n / 2). The trend within a window widens the
// standard error, so the check errs towards "does not fall".
LossFall check_loss_falls(std::span<const double> losses, std::size_t window = 5);

}  // namespace ljtrain::cnp
