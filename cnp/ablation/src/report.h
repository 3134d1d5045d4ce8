// What people and programs read of an ablation.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "evaluate.h"

namespace ljtrain::cnp {

// The table with what must be known to read it, at most 100 columns wide.
std::string result_text(const Ablation& ablation, const std::vector<RowResult>& results);

// The document of --json, which is also kept as result.json.
base::OrderedJson result_json(const Ablation& ablation, const std::vector<RowResult>& results,
                              bool interrupted);

// Whether a row failed altogether or misses loss parity.
bool has_failures(const Ablation& ablation, const std::vector<RowResult>& results);

}  // namespace ljtrain::cnp
