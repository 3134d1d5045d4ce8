// All that an ablation has decided and measured so far: written after every run, so that it can go
// on after an interrupt or a crash.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "launch.h"
#include "rows.h"

namespace ljtrain::cnp {

// What is kept of one run; the rest is in its record.
struct Measured {
  std::string row;  // id
  bool completed = false;
  std::string sentence;   // why it did not complete
  bool refused = false;   // as bad input
  std::string record_id;  // empty when none was written
  double step_s = 0;      // median step
  double tokens_per_s = 0;
  double wall_s = 0;  // of the whole process
  int steps = 0;      // all that ran, warm-up included
  std::optional<std::uint64_t> peak_bytes;
  std::optional<std::uint64_t> resident_bytes;
};

Measured summarize(const Row& row, const RunOutcome& outcome);

struct Ablation {
  std::string id;
  std::string created;
  AblationOptions options;
  std::filesystem::path folder;               // of this ablation: state.json, result.json, warmup/
  std::filesystem::path records;              // where ljperf writes
  std::vector<Measured> warmup;               // in order
  bool stock_compile = false;                 // Base runs with stock torch.compile
  std::optional<double> stock_compile_ratio;  // its step without / with
  std::optional<std::uint64_t> full_bytes;    // peaks that the limit lies between
  std::optional<std::uint64_t> none_bytes;
  std::optional<std::uint64_t> limit_bytes;
  int steps = 0;       // measured steps of a run; 0: not chosen yet
  double spent_s = 0;  // of the budget
  std::string proxy;   // "1/8 of llama3-8b", empty: the full model
  std::vector<std::vector<Measured>> blocks;
  std::string stopped;  // why it ended: narrow, budget, blocks; empty: not yet
};

// ROOT/ID with a state.json in it.
void save(const Ablation& ablation);
// UserError when the folder holds none, or one of a later release.
Ablation load(const std::filesystem::path& folder);

}  // namespace ljtrain::cnp
