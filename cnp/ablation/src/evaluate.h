// From runs to the table: speed-ups, contributions, parity.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cnp/comparison.h"
#include "cnp/statistics.h"
#include "state.h"

namespace ljtrain::cnp {

struct RowResult {
  Row row;
  std::vector<std::string> record_ids;  // of the blocks
  int completed = 0;                    // runs of the blocks
  int failed = 0;
  bool given_up = false;         // failed too often to be tried again
  std::string sentence;          // of the last failure
  std::optional<double> step_s;  // medians over runs
  std::optional<double> tokens_per_s;
  std::optional<RatioEstimate> speedup;       // over Base, of tokens/s
  std::optional<RatioEstimate> contribution;  // over row.against
  std::optional<std::uint64_t> peak_bytes;    // largest of the runs
  std::optional<std::uint64_t> resident_bytes;
  std::optional<LossParity> parity;  // with Base; nullopt: Base itself, or not comparable
};

// Reads a record by its id; nullopt when it is not there any more.
using ReadRecord = std::function<std::optional<Record>(const std::string& id)>;

// One result a row, in the order of `rows`. Ratios are of runs of the same block only, so that what
// a block's runs shared cancels.
std::vector<RowResult> evaluate(const Ablation& ablation, const std::vector<Row>& rows,
                                const ReadRecord& read);

// Whether every speed-up that can be had has an interval of at most +- `until` (a fraction of it).
bool is_narrow(const std::vector<RowResult>& results, double until);

// Blocks in which every row that is not given up has run.
std::size_t full_blocks(const Ablation& ablation, const std::vector<Row>& rows);

}  // namespace ljtrain::cnp
