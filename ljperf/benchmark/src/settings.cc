#include "settings.h"

#include "base/errors.h"
#include "benchmark/options.h"

namespace ljtrain::ljperf {

using base::Json;

Settings parse_settings(const std::vector<std::string>& settings) {
  Settings parsed;
  for (const std::string& setting : settings) {
    auto [key, text] = split_setting(setting);
    Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (text == "True" || text == "False") {
      value = text == "True";
    }
    if (!parsed.emplace(key, value.is_discarded() ? Json(text) : value).second) {
      throw base::user_error("--set {}: given twice; leave one out", key);
    }
  }
  return parsed;
}

bool flag(const Settings& settings, const char* key, bool otherwise) {
  auto found = settings.find(key);
  return found == settings.end() || !found->second.is_boolean() ? otherwise
                                                                : found->second.get<bool>();
}

int positive(const Settings& settings, const char* key, int otherwise) {
  auto found = settings.find(key);
  if (found == settings.end()) {
    return otherwise;
  }
  if (!found->second.is_number_integer() || found->second < 1 || found->second > 1'000'000) {
    throw base::user_error("--set {}={}: must be a whole number from 1 on", key,
                           found->second.dump());
  }
  return found->second.get<int>();
}

Settings merge_settings(const Settings& file, const Settings& set) {
  Settings merged = {{"gradient_checkpointing", true}};
  for (const Settings* source : {&file, &set}) {
    for (const auto& [key, value] : *source) {
      merged[key] = value;
    }
  }
  // transformers takes one of bf16 and fp16; who asks for fp16 means it instead.
  merged.try_emplace("bf16", !flag(merged, "fp16", false));
  return merged;
}

std::string precision_of(const Settings& merged) {
  return flag(merged, "fp16", false) ? "fp16" : flag(merged, "bf16", true) ? "bf16" : "fp32";
}

}  // namespace ljtrain::ljperf
