// Step times as runs show them, made from a seed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace ljtrain::cnp {

class SyntheticSteps {
 public:
  explicit SyntheticSteps(std::uint64_t seed) : engine_(seed) {}

  // `count` steps around `level`: stationary AR(1) noise with lag-1 correlation `phi` and standard
  // deviation `sigma` (a fraction of the level).
  std::vector<double> steady(std::size_t count, double level, double sigma, double phi) {
    std::vector<double> steps(count);
    double state = normal_(engine_);
    for (double& step : steps) {
      step = level * (1 + sigma * state);
      state = phi * state + std::sqrt(1 - phi * phi) * normal_(engine_);
    }
    return steps;
  }

  double normal() { return normal_(engine_); }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
};

}  // namespace ljtrain::cnp
