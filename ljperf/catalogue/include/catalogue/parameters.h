// Exact parameter counts from the architecture, equal to what transformers builds (each tensor
// once: a tied output head is the input embedding).
#pragma once

#include <cstdint>
#include <vector>

#include "catalogue/model_config.h"

namespace ljtrain::ljperf {

// All counts are numbers of parameters (elements), not bytes.
struct ParameterCounts {
  std::int64_t total = 0;
  std::int64_t trainable = 0;  // all of them: nothing is frozen in a training from a config
  std::int64_t embedding = 0;  // tables that are looked up: tokens, learned positions, segments
  std::int64_t head = 0;       // output head; 0 for the matrix where it is tied
  std::int64_t active = 0;     // that a token meets: of the routed experts only its top-k
  std::vector<std::int64_t> layers;         // one a layer, all its experts included
  std::vector<std::int64_t> active_layers;  // the same with top-k experts
};

ParameterCounts count_parameters(const ModelConfig& config);

}  // namespace ljtrain::ljperf
