// The DeepSpeed JSON of a run: the defaults of transformers' documentation, under the user's file,
// under --zero and --set.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/json.h"

namespace ljtrain::ljperf {

struct DeepSpeedConfig {
  base::OrderedJson json;
  int zero_stage = 3;
  std::optional<int> micro_batch;            // from the user's file, when it has a number
  std::optional<int> gradient_accumulation;  // likewise
};

// `settings` are the TrainingArguments from --set: a key of the file that one of them also decides
// becomes "auto", so that
// --set wins. Throws UserError naming file, line and key.
DeepSpeedConfig make_deepspeed_config(const std::filesystem::path& file, std::optional<int> zero,
                                      std::optional<int> micro_batch,
                                      const std::map<std::string, base::Json>& settings);

}  // namespace ljtrain::ljperf
