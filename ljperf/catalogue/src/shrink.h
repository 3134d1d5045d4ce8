// Writes the config.json of a proxy: the model's own with its sizes divided and its layers chosen.
#pragma once

#include <cstdint>
#include <vector>

#include "catalogue/model_config.h"

namespace ljtrain::ljperf {

// `divisor` is one of legal_divisors(config); `chosen` are the layers kept (choose_layers), of a
// pattern that is `periodic` or not.
ModelConfig shrink(const ModelConfig& config, std::int64_t divisor,
                   const std::vector<std::int64_t>& chosen, bool periodic);

}  // namespace ljtrain::ljperf
