// What each part of a stack brings: the same training run in several configurations, interleaved so
// that whatever disturbs the machine hits all alike. docs/cnp.md ("Ablate") shows the command.
//
// Runs are started as `ljperf benchmark --json` and nothing is known of ljperf but the record that
// it prints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ljtrain::cnp {

inline constexpr double kDefaultBudgetSeconds = 900;
inline constexpr double kDefaultUntil = 0.02;
inline constexpr double kDefaultRunTimeoutSeconds = 1800;

struct AblationOptions {
  std::string model;  // ENGINE/NAME, as ljperf takes it
  // NAME=VENV or NAME=IMAGE. `base` is where the row Base runs; any other name becomes a row that
  // runs all parts in that environment, with its own ljperf where it has one: release against
  // release.
  std::map<std::string, std::string> environments;
  std::vector<std::string> axes;  // KEY=VALUE,VALUE,...: a grid instead of the ladder
  bool leave_one_out = false;
  bool limit_row = false;
  double until = kDefaultUntil;  // half width of every speed-up's interval, as a fraction
  double budget_s = kDefaultBudgetSeconds;  // the warm-up is outside of it
  std::optional<int> steps;                 // measured steps a run; unset: chosen from the budget
  std::optional<int> blocks;                // at most; unset: what the budget allows
  std::uint64_t seed = 1;                   // of the order of the rows
  double run_timeout_s = kDefaultRunTimeoutSeconds;
  std::filesystem::path ljperf;  // empty: beside this program, else in PATH
  // The folder of an ablation that was interrupted. Its options are kept there; budget and until
  // replace its own where they are given.
  std::filesystem::path resume;
  bool budget_given = false;
  bool until_given = false;
  std::vector<std::string> more;  // passed on to every run
  bool json = false;
  bool dry_run = false;
};

// Throws UserError for what can be judged without a run.
void check(const AblationOptions& options);

// Runs all of it. Returns the exit code: 0 done, 1 a row failed or missed loss parity, 130
// interrupted (what was measured is kept and shown). Throws UserError for bad input.
int run_ablation(AblationOptions options);

}  // namespace ljtrain::cnp
