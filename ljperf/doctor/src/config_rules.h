// The rules that a configuration is held to.
#pragma once

#include <span>
#include <string_view>

#include "config_view.h"
#include "doctor/finding.h"

namespace ljtrain::ljperf {

enum class Side { kDeepSpeed, kArguments };

struct ConfigRule {
  std::string_view id;  // after "config."
  Status status;        // when broken
  Side side;            // the file that `key` stands in
  std::string_view key;
  bool (*broken)(const ConfigView&);
  std::string_view found;
  std::string_view expected;
  std::string_view fix;
};
std::span<const ConfigRule> config_rules();

// A key of DeepSpeed's JSON and the argument that must say the same (transformers 5.24,
// integrations/deepspeed.py: the Trainer refuses what differs).
struct Twin {
  std::string_view key;
  std::string_view argument;
};
std::span<const Twin> config_twins();

// Keys that the Trainer fills in where DeepSpeed's JSON says "auto"; in others the word stays.
std::span<const std::string_view> keys_that_may_be_auto();

}  // namespace ljtrain::ljperf
