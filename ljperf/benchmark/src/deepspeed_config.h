// The DeepSpeed JSON of a run: the defaults of transformers' documentation, under the user's file,
// under --zero and --set.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/json.h"
#include "settings.h"

namespace ljtrain::ljperf {

struct DeepSpeedConfig {
  base::OrderedJson json;
  int zero_stage = 3;
  std::optional<int> micro_batch;  // from the user's file, when it has a number
  // Sequences of a step over all ranks, when the file has a number, and where it has it.
  std::optional<int> train_batch;
  std::string where_train_batch;
  // TrainingArguments that the file decides: transformers refuses a file and arguments that differ,
  // so the arguments follow the file where --set says nothing.
  Settings decided;
};

// `set` are the TrainingArguments from --set: a key of the file that one of them also decides
// becomes "auto", so that --set wins. Throws UserError naming file, line and key.
DeepSpeedConfig make_deepspeed_config(const std::filesystem::path& file, std::optional<int> zero,
                                      std::optional<int> micro_batch, const Settings& set);

}  // namespace ljtrain::ljperf
