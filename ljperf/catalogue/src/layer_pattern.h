// Choosing fewer layers of a model so that its pattern of layers stays (Gemma's five local layers
// to each global one, dense layers among mixtures of experts).
#pragma once

#include <cstdint>
#include <vector>

#include "catalogue/model_config.h"

namespace ljtrain::ljperf {

struct LayerPattern {
  std::int64_t period = 1;  // layers after which the pattern repeats
  bool periodic = true;     // false: no period; layers are then taken evenly from first to last
};

LayerPattern find_pattern(const std::vector<LayerSpec>& layers);

// The nearest number of layers to `wanted` that keeps the pattern: whole periods, at least
// `least` layers where the model has them, at most all.
std::int64_t round_to_pattern(const LayerPattern& pattern, std::int64_t wanted, std::int64_t least,
                              std::int64_t of_layers);

// Which layers of the model (0-based, ascending) the `count` layers of the proxy stand for: the
// first ones of a periodic pattern, else evenly spaced ones with the first and the last.
std::vector<std::int64_t> choose_layers(const LayerPattern& pattern, std::int64_t count,
                                        std::int64_t of_layers);

}  // namespace ljtrain::ljperf
