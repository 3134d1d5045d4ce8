// YAML 1.2 that YAML 1.1 readers take for the same: block style, every text in double quotes.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace ljtrain::ljperf {

// One document. Throws UserError for text that is not UTF-8.
std::string to_yaml(const base::OrderedJson& document);
// Several, divided by "---".
std::string to_yaml(const std::vector<base::OrderedJson>& documents);

}  // namespace ljtrain::ljperf
