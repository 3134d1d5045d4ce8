// Release notes in Markdown, from a manifest and what was measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "image/compare.h"
#include "image/release.h"

namespace ljtrain::image {

// One row of `cnp ablate --json`; what a failed row lacks is nullopt.
struct AblationRow {
  std::string configuration;
  std::optional<double> tokens_per_s;
  std::optional<double> speedup;  // over the base stack
  std::optional<double> low;      // 95 % interval of the speedup
  std::optional<double> high;
  std::optional<double> contribution;  // ratio to the row that it adds to
  bool other_loss = false;             // misses the base stack's beyond the tolerance
};

struct Ablation {
  std::string model;
  std::string proxy;  // what was trained in the model's place; empty: the model
  bool interrupted = false;
  std::vector<AblationRow> rows;
};

// Throws UserError, one sentence with file, line and key, for what is no such document.
Ablation read_ablation(const base::JsonDocument& document);

struct NotesInput {
  const Release* release = nullptr;
  const Release* since = nullptr;    // null: no table of changes
  std::optional<Ablation> ablation;  // nullopt: not measured
  std::string ablation_source;       // name of the file; only its last part is written
};
std::string write_notes(const NotesInput& input);

}  // namespace ljtrain::image
