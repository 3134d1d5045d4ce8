// The keys that DeepSpeed's JSON and transformers' TrainingArguments have.
#pragma once

#include <span>
#include <string_view>

namespace ljtrain::ljperf {

struct KnownSection {
  std::string_view pointer;  // "/zero_optimization/offload_param"
  std::span<const std::string_view> keys;
};

std::span<const std::string_view> deepspeed_keys();  // at the top
std::span<const KnownSection> deepspeed_sections();
std::span<const std::string_view> training_argument_keys();

}  // namespace ljtrain::ljperf
