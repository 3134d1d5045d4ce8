#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

namespace ljtrain::cnp {
namespace {

// All runs of a row, oldest first.
std::vector<const Measured*> runs_of(const Ablation& ablation, const std::string& row) {
  std::vector<const Measured*> runs;
  auto add = [&](const std::vector<Measured>& list) {
    for (const Measured& run : list) {
      if (run.row == row) {
        runs.push_back(&run);
      }
    }
  };
  add(ablation.warmup);
  for (const std::vector<Measured>& block : ablation.blocks) {
    add(block);
  }
  return runs;
}

struct Cost {
  double start_s = 0;
  double step_s = 0;
};

// Of the newest run that completed: the first ones compile.
std::optional<Cost> newest_cost(const Ablation& ablation, const std::string& row) {
  std::vector<const Measured*> runs = runs_of(ablation, row);
  auto newest =
      std::find_if(runs.rbegin(), runs.rend(), [](const Measured* run) { return run->completed; });
  if (newest == runs.rend()) {
    return std::nullopt;
  }
  const Measured& run = **newest;
  return Cost{std::max(0.0, run.wall_s - run.steps * run.step_s), run.step_s};
}

}  // namespace

std::vector<std::size_t> block_order(std::uint64_t seed, std::size_t block, std::size_t rows) {
  std::vector<std::size_t> order(rows);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                         static_cast<std::uint32_t>(block)};
  std::mt19937_64 engine(sequence);
  // Fisher and Yates by hand: std::shuffle differs between standard libraries. The remainder's bias
  // is below rows / 2^64.
  for (std::size_t i = rows; i > 1; --i) {
    std::swap(order[i - 1], order[engine() % i]);
  }
  return order;
}

std::optional<double> expected_cost(const Ablation& ablation, const std::string& row, int steps) {
  std::optional<Cost> cost = newest_cost(ablation, row);
  if (!cost.has_value()) {
    return std::nullopt;
  }
  return cost->start_s + (kRunWarmup + steps) * cost->step_s;
}

int choose_steps(const Ablation& ablation, const std::vector<std::string>& rows) {
  if (ablation.options.steps.has_value()) {
    return *ablation.options.steps;
  }
  double start_s = 0;
  double step_s = 0;
  for (const std::string& row : rows) {
    if (std::optional<Cost> cost = newest_cost(ablation, row)) {
      start_s += cost->start_s;
      step_s += cost->step_s;
    }
  }
  if (step_s <= 0) {
    return kLeastSteps;
  }
  double block_s = ablation.options.budget_s / kWantedBlocks;
  double steps = (block_s - start_s) / step_s - kRunWarmup;
  return static_cast<int>(std::clamp<double>(std::floor(steps), kLeastSteps, kMostSteps));
}

bool is_given_up(const Ablation& ablation, const std::string& row) {
  bool warm = std::ranges::any_of(
      ablation.warmup, [&](const Measured& run) { return run.row == row && run.completed; });
  bool failed_warmup = std::ranges::any_of(
      ablation.warmup, [&](const Measured& run) { return run.row == row && !run.completed; });
  if (failed_warmup && !warm) {
    return true;
  }
  int failures = 0;
  for (const Measured* run : runs_of(ablation, row)) {
    failures = run->completed ? 0 : failures + 1;
  }
  return failures >= kMostFailures;
}

}  // namespace ljtrain::cnp
