#include "calibration/regression.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

// Twelve rows, the last two outliers; the expected values are those that
// tests/reference_fit.py finds with scipy.optimize.minimize (Nelder-Mead on the loss itself).
Eigen::MatrixXd reference_features() {
  Eigen::MatrixXd features(12, 2);
  for (int i = 0; i < 12; ++i) {
    features.row(i) << 1, i;
  }
  return features;
}

Eigen::VectorXd reference_values() {
  Eigen::VectorXd values(12);
  values << 2.1, 2.4, 3.2, 3.4, 4.1, 4.4, 5.1, 5.6, 5.9, 6.6, 30.0, -20.0;
  return values;
}

TEST(HuberFit, MatchesScipyOnTheSameNumbers) {
  RobustFit fit = fit_huber(reference_features(), reference_values());
  EXPECT_NEAR(fit.coefficients[0], 2.04608946, 1e-5);
  EXPECT_NEAR(fit.coefficients[1], 0.49642457, 1e-5);
  EXPECT_NEAR(fit.scale, 0.18213640, 1e-5);
  EXPECT_EQ(fit.degrees_of_freedom, 10);
}

TEST(HuberFit, WithoutOutliersItIsNearLeastSquares) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(0, 0.1);
  Eigen::MatrixXd features(200, 3);
  Eigen::VectorXd values(200);
  for (int i = 0; i < 200; ++i) {
    features.row(i) << 1, std::sin(i), i / 100.0;
    values[i] = 5 - 2 * features(i, 1) + 3 * features(i, 2) + noise(random);
  }
  RobustFit fit = fit_huber(features, values);
  Eigen::VectorXd least_squares = features.colPivHouseholderQr().solve(values);
  EXPECT_LT((fit.coefficients - least_squares).norm(), 0.01);
  EXPECT_NEAR(fit.scale, 0.1, 0.02);
}

TEST(HuberFit, OutliersHardlyMoveIt) {
  std::mt19937 random(11);
  std::normal_distribution<double> noise(0, 0.5);
  Eigen::MatrixXd features(100, 2);
  Eigen::VectorXd clean(100);
  Eigen::VectorXd spoiled(100);
  for (int i = 0; i < 100; ++i) {
    features.row(i) << 1, i;
    clean[i] = 10 + 0.5 * i + noise(random);
    spoiled[i] = i % 8 == 0 ? 1000 : clean[i];  // one in eight is nonsense
  }
  RobustFit fit = fit_huber(features, spoiled);
  Eigen::VectorXd least_squares = features.colPivHouseholderQr().solve(spoiled);
  Eigen::VectorXd truth(2);
  truth << 10, 0.5;
  EXPECT_LT((fit.coefficients - truth).norm(), 1);
  EXPECT_GT((least_squares - truth).norm(), 50);
}

TEST(HuberFit, PointsOnALineLeaveNoScale) {
  Eigen::VectorXd values(12);
  for (int i = 0; i < 12; ++i) {
    values[i] = 1 + 2 * i;
  }
  RobustFit fit = fit_huber(reference_features(), values);
  EXPECT_NEAR(fit.coefficients[1], 2, 1e-12);
  EXPECT_NEAR(fit.above(reference_features().row(3).transpose(), 0.025), 0, 1e-9);
}

// How often a new observation lies above the bound: 2.5 % is promised.
TEST(HuberFit, TheBoundHoldsAsOftenAsItSays) {
  std::mt19937 random(3);
  std::normal_distribution<double> noise(0, 2);
  std::uniform_real_distribution<double> place(0, 10);
  int above = 0;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    Eigen::MatrixXd features(30, 2);
    Eigen::VectorXd values(30);
    for (int i = 0; i < 30; ++i) {
      features.row(i) << 1, place(random);
      values[i] = 4 + 3 * features(i, 1) + noise(random);
    }
    RobustFit fit = fit_huber(features, values);
    Eigen::VectorXd fresh(2);
    fresh << 1, place(random);
    double observed = 4 + 3 * fresh[1] + noise(random);
    above += observed > fit.value(fresh) + fit.above(fresh, 0.025);
  }
  double share = static_cast<double>(above) / kRounds;
  EXPECT_GT(share, 0.01);
  EXPECT_LT(share, 0.05);
}

TEST(HuberFit, WhatCannotBeFittedIsRefused) {
  Eigen::MatrixXd same = Eigen::MatrixXd::Ones(10, 2);
  EXPECT_THROW(fit_huber(same, Eigen::VectorXd::Ones(10)), base::UserError);
  EXPECT_THROW(fit_huber(Eigen::MatrixXd::Identity(2, 2), Eigen::VectorXd::Ones(2)),
               base::UserError);
  Eigen::VectorXd values = reference_values();
  values[4] = std::nan("");
  EXPECT_THROW(fit_huber(reference_features(), values), base::UserError);
}

TEST(StudentQuantile, MatchesScipy) {
  // scipy.stats.t.ppf(0.975, n)
  EXPECT_NEAR(student_quantile(0.975, 3), 3.182446, 3.182446 * 0.005);
  EXPECT_NEAR(student_quantile(0.975, 5), 2.570582, 2.570582 * 0.001);
  EXPECT_NEAR(student_quantile(0.975, 30), 2.042272, 1e-4);
  EXPECT_NEAR(student_quantile(0.9, 10), 1.372184, 1e-3);
}

}  // namespace
}  // namespace ljtrain::recompute
