// TrainingArguments as the user gives them: --set KEY=VALUE, and what a DeepSpeed file decides.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace ljtrain::ljperf {

// TrainingArguments by name.
using Settings = std::map<std::string, base::Json>;

// KEY=VALUE each; VALUE as JSON where it is JSON (True and False count), else as text. Throws
// UserError for a key given twice.
Settings parse_settings(const std::vector<std::string>& settings);

// The value of a flag; `otherwise` when it is absent or no bool.
bool flag(const Settings& settings, const char* key, bool otherwise);

// A whole number from 1 to 10^6; `otherwise` when absent. Throws UserError for anything else.
int positive(const Settings& settings, const char* key, int otherwise);

// What the run trains with: the base stack's own arguments under `file` (DeepSpeed's) under `set`.
Settings merge_settings(const Settings& file, const Settings& set);

// bf16, fp16 or fp32, by the merged settings.
std::string precision_of(const Settings& merged);

}  // namespace ljtrain::ljperf
