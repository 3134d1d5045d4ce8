// Linear regression that outliers cannot move far, with intervals for new observations.
#pragma once

#include <Eigen/Dense>

namespace ljtrain::recompute {

// y = X b + noise, by Huber's M-estimator: iteratively reweighted least squares, the scale from the
// median absolute residual (Huber 1964; Huber & Ronchetti, Robust Statistics, 2nd ed., chapter 7).
struct RobustFit {
  Eigen::VectorXd coefficients;
  double scale = 0;             // of the noise: 1.4826 times the median absolute residual
  Eigen::MatrixXd information;  // X' W X at the end: its inverse times scale^2 is the covariance
  double degrees_of_freedom = 0;
  int iterations = 0;

  double value(const Eigen::VectorXd& features) const { return coefficients.dot(features); }
  // How far above `value` a new observation at `features` is with probability 1 - `share` at most.
  // Outliers are no part of the noise that this speaks of.
  double above(const Eigen::VectorXd& features, double share) const;
};

// Residuals beyond `threshold` scales count with less than full weight; 1.345 keeps 95 % of the
// efficiency of least squares under normal noise. Throws UserError for fewer rows than columns
// plus one, for columns that depend on each other, and for numbers that are not finite.
RobustFit fit_huber(const Eigen::MatrixXd& features, const Eigen::VectorXd& values,
                    double threshold = 1.345);

// The quantile of Student's t distribution, for 0.5 < probability < 1 and at least 3 degrees of
// freedom within 0.5 % (Cornish-Fisher expansion, Abramowitz & Stegun 26.7.5).
double student_quantile(double probability, double degrees_of_freedom);

}  // namespace ljtrain::recompute
