// The rows of an ablation: which configurations, and what each is compared with.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ablation/ablation.h"
#include "base/json.h"

namespace ljtrain::cnp {

// One configuration.
struct Row {
  std::string id;                      // short and stable: base, accl, ...
  std::string name;                    // as people read it
  std::string adds;                    // the part whose contribution the row shows; may be empty
  std::vector<std::string> arguments;  // of ljperf benchmark, after the common ones
  std::map<std::string, std::string> variables;
  std::string environment;  // name in AblationOptions::environments, or empty
  // Row that the contribution is against, by id; empty: none. `inverse`: the contribution is that
  // row's speed over this one's (this one lacks the part).
  std::string against;
  bool inverse = false;
  bool limited = false;      // gets --memory-limit, once the warm-up has found it
  bool stock = false;        // may take stock torch.compile, if the warm-up finds it faster
  bool same_loss = true;     // must have Base's loss
  std::string why_not_same;  // else why not
};

// The ladder with what options add to it, or the grid of the axes. Base, the first, is what
// everything is compared with. Throws UserError for an axis that cannot be read.
std::vector<Row> plan_rows(const AblationOptions& options);

// Runs that only the warm-up makes, to measure the peaks that the memory limit lies between:
// checkpointing everything, and nothing.
std::optional<std::pair<Row, Row>> peak_rows(const std::vector<Row>& rows);

// What full checkpointing needs + `share` of the way to none; none's need below full's is full's.
inline constexpr double kMemoryShare = 0.6;
std::uint64_t memory_limit(std::uint64_t full_bytes, std::uint64_t none_bytes,
                           double share = kMemoryShare);

}  // namespace ljtrain::cnp
