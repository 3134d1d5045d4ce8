#include "cnp/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/errors.h"
#include "finite.h"

namespace ljtrain::cnp {
namespace {

constexpr double kUpper95 = 0.975;  // of the two-sided 95 % interval

// The order statistic of rank `k` (from 0); reorders `values` around it.
double select(std::vector<double>& values, std::size_t k) {
  auto at = values.begin() + static_cast<std::ptrdiff_t>(k);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Interval t_interval(double center, double standard_error, double degrees) {
  double half = standard_error == 0 ? 0 : student_t_quantile(kUpper95, degrees) * standard_error;
  return {center - half, center + half};
}

Interval exponential(const Interval& interval) {
  return {std::exp(interval.low), std::exp(interval.high)};
}

std::vector<double> logarithms(std::span<const double> values) {
  require_some(values);
  std::vector<double> logs;
  logs.reserve(values.size());
  for (double value : values) {
    if (value <= 0) {
      throw base::user_error("a ratio needs values above 0, and one is {}", value);
    }
    logs.push_back(std::log(value));
  }
  return logs;
}

// Takes level and linear trend out of equally spaced values (least squares).
void detrend(std::vector<double>& values) {
  auto n = static_cast<double>(values.size());
  double middle = (n - 1) / 2;
  double level = mean(values);
  double product = 0;
  double square = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    double x = static_cast<double>(i) - middle;
    product += x * (values[i] - level);
    square += x * x;
  }
  double slope = square > 0 ? product / square : 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] -= level + slope * (static_cast<double>(i) - middle);
  }
}

}  // namespace

double quantile(std::span<const double> values, double p) {
  require_some(values);
  if (!(p >= 0 && p <= 1)) {
    throw base::user_error("a quantile needs a fraction between 0 and 1, not {}", p);
  }
  std::vector<double> sorted(values.begin(), values.end());
  double rank = p * static_cast<double>(sorted.size() - 1);
  std::size_t below = std::min(static_cast<std::size_t>(rank), sorted.size() - 1);
  double low = select(sorted, below);
  if (below + 1 == sorted.size()) return low;
  // After select(), what follows is not smaller: its least is the next order statistic.
  double high =
      *std::min_element(sorted.begin() + static_cast<std::ptrdiff_t>(below) + 1, sorted.end());
  return std::lerp(low, high, rank - static_cast<double>(below));
}

double median(std::span<const double> values) { return quantile(values, 0.5); }

double mean(std::span<const double> values) {
  require_some(values);
  double sum = 0;
  double lost = 0;  // Neumaier's compensated summation
  for (double value : values) {
    double next = sum + value;
    lost += std::abs(sum) >= std::abs(value) ? (sum - next) + value : (value - next) + sum;
    sum = next;
  }
  return (sum + lost) / static_cast<double>(values.size());
}

std::optional<double> standard_deviation(std::span<const double> values) {
  double center = mean(values);
  if (values.size() < 2) return std::nullopt;
  double squares = 0;
  for (double value : values) squares += (value - center) * (value - center);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double median_absolute_deviation(std::span<const double> values) {
  double center = median(values);
  std::vector<double> deviations;
  deviations.reserve(values.size());
  for (double value : values) deviations.push_back(std::abs(value - center));
  return median(deviations);
}

std::optional<Interval> interval95_of_runs(std::span<const double> runs) {
  std::optional<double> deviation = standard_deviation(runs);
  if (!deviation) return std::nullopt;
  auto n = static_cast<double>(runs.size());
  return t_interval(mean(runs), *deviation / std::sqrt(n), n - 1);
}

RatioEstimate ratio_interval95(std::span<const double> a, std::span<const double> b) {
  std::vector<double> log_a = logarithms(a);
  std::vector<double> log_b = logarithms(b);
  double difference = mean(log_a) - mean(log_b);
  RatioEstimate estimate{std::exp(difference), std::nullopt, a.size() + b.size()};
  std::optional<double> deviation_a = standard_deviation(log_a);
  std::optional<double> deviation_b = standard_deviation(log_b);
  if (!deviation_a || !deviation_b) return estimate;
  auto n_a = static_cast<double>(a.size());
  auto n_b = static_cast<double>(b.size());
  double variance_a = *deviation_a * *deviation_a / n_a;
  double variance_b = *deviation_b * *deviation_b / n_b;
  double variance = variance_a + variance_b;
  // Satterthwaite: between min(n_a, n_b) - 1 and n_a + n_b - 2. As fractions, so that it does not
  // underflow; any number serves when the variance is 0.
  double share = variance > 0 ? variance_a / variance : 0.5;
  double degrees = 1 / (share * share / (n_a - 1) + (1 - share) * (1 - share) / (n_b - 1));
  estimate.ci95 = exponential(t_interval(difference, std::sqrt(variance), degrees));
  return estimate;
}

RatioEstimate paired_ratio_interval95(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size()) {
    throw base::user_error("pairs need lists of one length, not {} and {}", a.size(), b.size());
  }
  std::vector<double> differences = logarithms(a);
  std::vector<double> log_b = logarithms(b);
  for (std::size_t i = 0; i < differences.size(); ++i) differences[i] -= log_b[i];
  RatioEstimate estimate{std::exp(mean(differences)), std::nullopt, differences.size()};
  if (std::optional<Interval> interval = interval95_of_runs(differences)) {
    estimate.ci95 = exponential(*interval);
  }
  return estimate;
}

std::vector<Block> blocks_of_steps(std::span<const double> seconds, const std::vector<bool>& on,
                                   std::size_t run) {
  if (seconds.size() != on.size()) {
    throw base::user_error("{} step times, but {} switch positions", seconds.size(), on.size());
  }
  require_finite(seconds);
  struct Range {
    std::size_t begin;
    std::size_t length;
  };
  std::vector<Range> ranges;
  std::size_t longest = 0;
  for (std::size_t i = 0; i < on.size(); ++i) {
    if (i == 0 || on[i] != on[i - 1]) ranges.push_back({i, 0});
    longest = std::max(longest, ++ranges.back().length);
  }
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Range& range = ranges[i];
    bool at_end = i == 0 || i + 1 == ranges.size();
    if (at_end && 2 * range.length < longest) continue;
    blocks.push_back({run, on[range.begin], median(seconds.subspan(range.begin, range.length))});
  }
  return blocks;
}

std::optional<RatioEstimate> on_off_ratio(std::span<const Block> blocks) {
  static constexpr std::size_t kFewestBlocks = 4;  // level, trend and switch leave one to judge by
  struct Series {
    std::vector<double> seconds;
    std::vector<double> on;
  };
  std::map<std::size_t, Series> runs;
  for (const Block& block : blocks) {
    runs[block.run].seconds.push_back(block.seconds);
    runs[block.run].on.push_back(block.on ? 1 : 0);
  }
  // Frisch, Waugh and Lovell: with level and trend taken out of both sides run by run, what is left
  // is a regression on one variable through the origin.
  std::vector<std::pair<double, double>> residuals;  // of the switch, of log(seconds)
  double degrees = -1;
  for (auto& [run, series] : runs) {
    std::vector<double> logs = logarithms(series.seconds);
    auto [least, most] = std::minmax_element(series.on.begin(), series.on.end());
    if (logs.size() < kFewestBlocks || *least == *most) continue;
    detrend(logs);
    detrend(series.on);
    for (std::size_t i = 0; i < logs.size(); ++i) residuals.emplace_back(series.on[i], logs[i]);
    degrees += static_cast<double>(logs.size()) - 2;
  }
  double product = 0;
  double square = 0;
  for (auto [x, y] : residuals) {
    product += x * y;
    square += x * x;
  }
  if (square <= 0) return std::nullopt;
  double effect = product / square;
  double errors = 0;
  for (auto [x, y] : residuals) errors += (y - effect * x) * (y - effect * x);
  RatioEstimate estimate{std::exp(effect), std::nullopt, residuals.size()};
  estimate.ci95 = exponential(t_interval(effect, std::sqrt(errors / degrees / square), degrees));
  return estimate;
}

LossFall check_loss_falls(std::span<const double> losses, std::size_t window) {
  static constexpr double kStandardErrors = 3;
  require_some(losses);
  std::size_t k = std::min(window, losses.size() / 2);
  LossFall fall;
  if (k < 1) return fall;
  std::span<const double> first = losses.first(k);
  std::span<const double> last = losses.last(k);
  fall.first = mean(first);
  fall.last = mean(last);
  if (k < 2) return fall;
  fall.standard_error =
      std::hypot(standard_deviation(first).value_or(0), standard_deviation(last).value_or(0)) /
      std::sqrt(static_cast<double>(k));
  fall.falls = fall.first - fall.last > kStandardErrors * fall.standard_error;
  return fall;
}

}  // namespace ljtrain::cnp
