#include "cnp/steady_state.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/errors.h"
#include "cnp/statistics.h"
#include "finite.h"

namespace ljtrain::cnp {
namespace {

constexpr double kSigmaOfMad = 1.4826;     // MAD to the standard deviation of a normal
constexpr double kErrorOfMedian = 1.2533;  // sqrt(pi / 2): its standard error to that of the mean
constexpr double kOutlier = 8;             // robust standard deviations kept as they are
constexpr double kSmallestSpread = 2e-3;   // of the median: what counts as no noise at all
constexpr double kNearBest = 0.8;          // / sqrt(n): excess over the least criterion
constexpr std::size_t kFewestSteady = 4;   // steps needed to tell drift from none
constexpr double kDriftOfInterest = 0.02;  // of the median
constexpr double kDriftErrors = 3;         // standard errors

// Values beyond `kOutlier` robust standard deviations of the second half drawn in to that limit.
std::vector<double> drawn_in(std::span<const double> values) {
  std::span<const double> reference = values.last((values.size() + 1) / 2);
  double center = median(reference);
  double spread = std::max(kSigmaOfMad * median_absolute_deviation(reference),
                           kSmallestSpread * std::abs(center));
  std::vector<double> result(values.begin(), values.end());
  for (double& value : result) {
    value = std::clamp(value, center - kOutlier * spread, center + kOutlier * spread);
  }
  return result;
}

// MSER's criterion for each d from 0 to `most`: sum over x[d:] of (x - mean)^2, / (n - d)^2.
// Welford's recurrence from the end backwards, so that all take one pass.
std::vector<double> mser(std::span<const double> values, std::size_t most) {
  std::vector<double> criterion(most + 1);
  double center = 0;
  double squares = 0;
  for (std::size_t count = 1; count <= values.size(); ++count) {
    std::size_t d = values.size() - count;
    auto n = static_cast<double>(count);
    double away = values[d] - center;
    center += away / n;
    squares += away * (values[d] - center);
    if (d <= most) criterion[d] = squares / (n * n);
  }
  return criterion;
}

// Standard deviation of the noise from the median step between neighbours, which neither a drift, a
// shift of level nor an outlier moves much.
double noise(std::span<const double> values) {
  std::vector<double> differences;
  differences.reserve(values.size());
  for (std::size_t i = 1; i < values.size(); ++i) {
    differences.push_back(std::abs(values[i] - values[i - 1]));
  }
  return kSigmaOfMad * median(differences) / std::numbers::sqrt2;
}

// Whether the medians of both halves agree.
bool is_steady(std::span<const double> values) {
  if (values.size() < kFewestSteady) return false;
  std::size_t half = values.size() / 2;
  double drift = std::abs(median(values.last(half)) - median(values.first(half)));
  double error = kErrorOfMedian * noise(values) * std::sqrt(2.0 / static_cast<double>(half));
  return drift <= std::max(kDriftOfInterest * std::abs(median(values)), kDriftErrors * error);
}

// Sum of (x[i] - center) (x[i + lag] - center), / n.
double autocovariance(std::span<const double> values, double center, std::size_t lag) {
  double sum = 0;
  for (std::size_t i = 0; i + lag < values.size(); ++i) {
    sum += (values[i] - center) * (values[i + lag] - center);
  }
  return sum / static_cast<double>(values.size());
}

}  // namespace

Warmup find_warmup(std::span<const double> step_times, double max_fraction) {
  if (!(max_fraction >= 0 && max_fraction <= 0.5)) {
    throw base::user_error("the most to leave out as warm-up is between 0 and 0.5, not {}",
                           max_fraction);
  }
  require_finite(step_times);
  if (step_times.empty()) return {};
  std::vector<double> values = drawn_in(step_times);
  auto most = static_cast<std::size_t>(max_fraction * static_cast<double>(values.size()));
  std::vector<double> criterion = mser(values, most);
  double best = *std::min_element(criterion.begin(), criterion.end());
  std::size_t d = 0;
  double enough = best * (1 + kNearBest / std::sqrt(static_cast<double>(values.size())));
  while (criterion[d] > enough) ++d;
  return {d, is_steady(step_times.subspan(d))};
}

double lag1_autocorrelation(std::span<const double> values) {
  require_finite(values);
  if (values.size() < 3) return 0;
  double center = mean(values);
  double variance = autocovariance(values, center, 0);
  return variance > 0 ? autocovariance(values, center, 1) / variance : 0;
}

double effective_sample_size(std::span<const double> values) {
  require_some(values);
  auto n = static_cast<double>(values.size());
  double center = mean(values);
  double variance = autocovariance(values, center, 0);
  if (variance <= 0) return n;
  double tau = -1;
  double previous = 2;  // a pair of autocorrelations is never more
  for (std::size_t lag = 0; lag < values.size(); lag += 2) {
    double pair =
        (autocovariance(values, center, lag) + autocovariance(values, center, lag + 1)) / variance;
    if (pair <= 0) break;
    previous = std::min(previous, pair);
    tau += 2 * previous;
  }
  return std::max(1.0, n / std::max(1.0, tau));
}

}  // namespace ljtrain::cnp
