// What of a user's DeepSpeed JSON decides memory.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "memory_model/training.h"

namespace ljtrain::ljperf {

struct DeepSpeedSettings {
  int stage = 0;
  recompute::EngineKnobs knobs;
  std::optional<std::int64_t> micro_batch;
  std::optional<std::int64_t> accumulation;
  std::vector<std::string> notes;  // what DeepSpeed takes and ignores, and what is not counted
};

// Reads the file; "auto" becomes what the Trainer fills in for a model of that hidden size. Throws
// UserError naming file, line and key.
DeepSpeedSettings read_deepspeed_settings(const std::filesystem::path& file, std::int64_t hidden);

// The settings `ljperf plan` prints to paste, for a stage.
recompute::EngineKnobs recommended_knobs(int stage, std::int64_t hidden);

}  // namespace ljtrain::ljperf
