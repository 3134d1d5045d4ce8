#include "layer_pattern.h"

#include <algorithm>

namespace ljtrain::ljperf {
namespace {

bool repeats_after(const std::vector<LayerSpec>& layers, std::size_t period) {
  return std::equal(layers.begin() + static_cast<std::ptrdiff_t>(period), layers.end(),
                    layers.begin());
}

}  // namespace

LayerPattern find_pattern(const std::vector<LayerSpec>& layers) {
  if (layers.size() <= 1) {
    return {};
  }
  // A period must be seen whole at least twice to be one.
  for (std::size_t period = 1; period <= layers.size() / 2; ++period) {
    if (repeats_after(layers, period)) {
      return {.period = static_cast<std::int64_t>(period)};
    }
  }
  return {.period = 1, .periodic = false};
}

std::int64_t round_to_pattern(const LayerPattern& pattern, std::int64_t wanted, std::int64_t least,
                              std::int64_t of_layers) {
  if (wanted >= of_layers) {
    return of_layers;
  }
  std::int64_t period = pattern.period;
  std::int64_t periods = (wanted + period / 2) / period;
  std::int64_t least_periods = (std::min(least, of_layers) + period - 1) / period;
  return std::min(std::max(periods, least_periods) * period, of_layers);
}

std::vector<std::int64_t> choose_layers(const LayerPattern& pattern, std::int64_t count,
                                        std::int64_t of_layers) {
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < count; ++i) {
    bool first_ones = pattern.periodic || count == 1;
    chosen.push_back(first_ones ? i : (i * (of_layers - 1) + (count - 1) / 2) / (count - 1));
  }
  return chosen;
}

}  // namespace ljtrain::ljperf
