// What runs next, how many steps it takes, and when it is enough: decisions only, no processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "state.h"

namespace ljtrain::cnp {

// Steps that ljperf leaves out at the start of every run.
inline constexpr int kRunWarmup = 3;
// Blocks that are wanted of a budget: fewer leave t intervals wide, more spend it on start-up.
inline constexpr int kWantedBlocks = 8;
// Before that no interval is believed, however narrow: t of 2 degrees of freedom is 4.3.
inline constexpr int kLeastBlocks = 3;
inline constexpr int kLeastSteps = 5;
inline constexpr int kMostSteps = 30;
// Failures in a row after which a row is not tried again.
inline constexpr int kMostFailures = 2;

// The order of `rows` rows in block `block`: the same for the same seed, on every machine.
std::vector<std::size_t> block_order(std::uint64_t seed, std::size_t block, std::size_t rows);

// Seconds that one more run of a row costs with `steps` measured ones, by what its runs took so far
// (start-up apart from steps); nullopt when none has completed.
std::optional<double> expected_cost(const Ablation& ablation, const std::string& row, int steps);

// Measured steps of a run, so that kWantedBlocks blocks of `rows` fit the budget.
int choose_steps(const Ablation& ablation, const std::vector<std::string>& rows);

// Whether a row has failed too often to be tried again: in the warm-up, or kMostFailures times in a
// row.
bool is_given_up(const Ablation& ablation, const std::string& row);

}  // namespace ljtrain::cnp
