// What each layer keeps for its backward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ljtrain::recompute {

enum class LayerPolicy : std::uint8_t {
  kNone,      // keeps all that autograd saves; nothing is computed twice
  kSelected,  // keeps its input and the outputs of `kept_operators`, recomputes the rest
  kFull,      // keeps its input, recomputes all
};
std::string_view layer_policy_name(LayerPolicy policy);  // "none", "selected", "full"

struct Policy {
  std::vector<LayerPolicy> layers;  // one a layer, first to last
  // Operators ("aten.mm") whose outputs layers under kSelected keep.
  std::set<std::string, std::less<>> kept_operators;

  // The first `recomputed` of `layers` layers under kFull: the last ones' activations are freed
  // first, so leaving those alone costs least.
  static Policy first_recomputed(std::size_t layers, std::size_t recomputed);
};

}  // namespace ljtrain::recompute
