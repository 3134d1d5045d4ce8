#include "calibration/regression.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

constexpr int kMostIterations = 200;
constexpr double kConverged = 1e-10;  // change of the coefficients relative to their size
// The median absolute deviation of a normal variable is 0.6745 of its standard deviation.
constexpr double kMadToDeviation = 1.482602218505602;

double median(std::vector<double> values) {
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  double upper = *middle;
  if (values.size() % 2 == 1) {
    return upper;
  }
  return (upper + *std::max_element(values.begin(), middle)) / 2;
}

double robust_scale(const Eigen::VectorXd& residuals) {
  std::vector<double> sizes(static_cast<std::size_t>(residuals.size()));
  for (Eigen::Index i = 0; i < residuals.size(); ++i) {
    sizes[static_cast<std::size_t>(i)] = std::abs(residuals[i]);
  }
  return kMadToDeviation * median(std::move(sizes));
}

// The quantile of the normal distribution: bisection on erfc is exact enough and needs no table.
double normal_quantile(double probability) {
  double low = 0;
  double high = 40;
  for (int i = 0; i < 100; ++i) {
    double middle = (low + high) / 2;
    (1 - std::erfc(middle / std::sqrt(2.0)) / 2 < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

void check(const Eigen::MatrixXd& features, const Eigen::VectorXd& values) {
  if (features.rows() != values.size() || features.rows() <= features.cols()) {
    throw base::user_error("{} measurements cannot fit {} terms: at least {} are needed",
                           features.rows(), features.cols(), features.cols() + 1);
  }
  if (!features.allFinite() || !values.allFinite()) {
    throw base::user_error("a measurement is not a finite number");
  }
  if (Eigen::ColPivHouseholderQR<Eigen::MatrixXd>(features).rank() < features.cols()) {
    throw base::user_error("the measurements do not vary enough to tell {} terms apart",
                           features.cols());
  }
}

}  // namespace

double student_quantile(double probability, double degrees_of_freedom) {
  double z = normal_quantile(probability);
  double n = degrees_of_freedom;
  double z3 = z * z * z;
  double z5 = z3 * z * z;
  double z7 = z5 * z * z;
  double z9 = z7 * z * z;
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n) +
         (79 * z9 + 776 * z7 + 1482 * z5 - 1920 * z3 - 945 * z) / (92160 * n * n * n * n);
}

double RobustFit::above(const Eigen::VectorXd& features, double share) const {
  double leverage = features.dot(information.ldlt().solve(features));
  double wide = std::sqrt(1 + std::max(0.0, leverage));
  return student_quantile(1 - share, std::max(3.0, degrees_of_freedom)) * scale * wide;
}

RobustFit fit_huber(const Eigen::MatrixXd& features, const Eigen::VectorXd& values,
                    double threshold) {
  check(features, values);
  RobustFit fit;
  Eigen::VectorXd weights = Eigen::VectorXd::Ones(values.size());
  fit.coefficients = features.colPivHouseholderQr().solve(values);
  while (fit.iterations < kMostIterations) {
    ++fit.iterations;
    Eigen::VectorXd residuals = values - features * fit.coefficients;
    fit.scale = robust_scale(residuals);
    for (Eigen::Index i = 0; i < values.size(); ++i) {
      double size = std::abs(residuals[i]);
      double bend = threshold * fit.scale;
      weights[i] = size > bend && size > 0 ? bend / size : 1;
    }
    // Half of the residuals are 0: the line goes through those points, and no weight can tell more.
    if (fit.scale == 0) {
      weights.setOnes();
      break;
    }
    Eigen::VectorXd roots = weights.array().sqrt();
    Eigen::VectorXd next =
        (roots.asDiagonal() * features).colPivHouseholderQr().solve(roots.asDiagonal() * values);
    double moved = (next - fit.coefficients).norm();
    fit.coefficients = next;
    if (moved <= kConverged * (1 + next.norm())) {
      break;
    }
  }
  fit.scale = robust_scale(values - features * fit.coefficients);
  fit.information = features.transpose() * weights.asDiagonal() * features;
  fit.degrees_of_freedom = static_cast<double>(features.rows() - features.cols());
  return fit;
}

}  // namespace ljtrain::recompute
