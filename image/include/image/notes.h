// Release notes in Markdown, from a manifest and what was measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "image/compare.h"
#include "image/release.h"

namespace ljtrain::image {

// One row of `cnp ablate --json`.
struct AblationRow {
  std::string configuration;
  std::vector<std::string> record_ids;
  double tokens_per_s = 0;
  double speedup = 1;         // over the base stack
  std::optional<double> low;  // 95 % interval of the speedup
  std::optional<double> high;
  std::optional<double> contribution;
  bool parity = true;  // the loss agrees with the base stack's
};

// Throws UserError, one sentence with file, line and key, for what is no such document.
std::vector<AblationRow> read_ablation(const base::JsonDocument& document);

struct NotesInput {
  const Release* release = nullptr;
  const Release* since = nullptr;  // null: no table of changes
  std::vector<AblationRow> ablation;
  std::string ablation_source;  // name of the file; only its last part is written
};
std::string write_notes(const NotesInput& input);

}  // namespace ljtrain::image
