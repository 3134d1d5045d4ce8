// What to keep and what to recompute in a stack of layers, as a problem of its own: choose one
// option a layer so that no moment of the step needs more than the limit and the time is least.
//
// While layer i computes, forward or backward, what the layers before it saved is there as well;
// while the head computes, what all of them saved. So the only thing that layers share is the sum
// saved so far, and going through the stack with the pairs (saved so far, time so far) of which no
// other is better in both finds the optimum, whatever the kinds of layers and their order. Bounds
// by Lagrangian relaxation cut most pairs off.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace ljtrain::recompute {

// One way to treat one layer. Bytes.
struct LayerChoice {
  double seconds = 0;         // computed twice
  double saved_bytes = 0;     // kept until this layer's backward
  double forward_bytes = 0;   // highest moment of its forward, without what earlier layers saved
  double backward_bytes = 0;  // and of its backward
};

struct Stack {
  std::vector<std::vector<LayerChoice>> layers;  // the same number of choices for each
  // Layers of the same kind take the same time under the same choice. Empty: all are of one.
  std::vector<int> kinds;
  double head_bytes = 0;       // highest moment of head and loss, without what the layers saved
  double elsewhere_bytes = 0;  // highest moment that no choice changes
};

struct StackSolution {
  std::vector<std::size_t> choices;  // one a layer
  double seconds = 0;
  double peak_bytes = 0;
  // No choice of options that fits takes less time than this. Equal to `seconds` unless the search
  // had to give up on exactness.
  double least_seconds = 0;
};

// The highest moment under these choices.
double peak_of(const Stack& stack, const std::vector<std::size_t>& choices);

// The choice that takes least time within `limit_bytes`; nullopt when none fits. Among layers of a
// kind those that save least come first, where that fits: what the last ones save is freed first.
// `most_pairs`: pairs kept a layer; beyond it sums are rounded up, and `least_seconds` says how far
// from the optimum the result may be.
std::optional<StackSolution> solve(const Stack& stack, double limit_bytes,
                                   std::size_t most_pairs = 20'000);

// A lower bound on the time of any choice that fits, infinity when surely none does. Cheap.
double least_seconds(const Stack& stack, double limit_bytes);

}  // namespace ljtrain::recompute
