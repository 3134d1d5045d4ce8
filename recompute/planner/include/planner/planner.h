// Chooses how each layer of a model is trained (all activations kept, those of some operators kept,
// or all recomputed) so that the predicted peak stays within a limit and the step takes least time.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "memory_model/prediction.h"
#include "planner/stack.h"
#include "planner/time_model.h"

namespace ljtrain::recompute {

// Operators whose outputs layers may keep together, with what that costs over the whole stack.
struct KeptOperators {
  std::set<std::string, std::less<>> names;
  double kept_bytes = 0;     // if every layer keeps them
  double seconds_saved = 0;  // of recomputing, if every layer keeps them
};

// The sets of operators worth trying, by kept bytes: of all sets of the `most_operators` operators
// that take most time (at least 1 % of the forward each), those that save more time than any other
// of no more bytes; at most `most_sets` of them, spread evenly.
std::vector<KeptOperators> kept_operator_sets(const Predictor& predictor,
                                              const std::vector<LayerKind>& layers,
                                              const StepSeconds& seconds,
                                              std::size_t most_operators = 12,
                                              std::size_t most_sets = 24);

struct PlanRequest {
  double limit_bytes = 0;
  bool selected_operators = true;  // false: a layer keeps all or nothing
  // Layers to recompute, the first ones: no choice but this. Negative is a UserError, more than
  // there are layers as well.
  std::optional<std::int64_t> recompute_layers;
  // Operators to keep in layers that recompute: no choice but this.
  std::optional<std::set<std::string, std::less<>>> kept_operators;
  double micro_batches = 1;  // a step
};

struct Plan {
  Policy policy;
  Prediction prediction;
  bool fits = false;                  // false: the policy is the one with the lowest peak found
  std::size_t recomputed_layers = 0;  // not kNone
  double recompute_seconds = 0;       // of a step
  double step_seconds = 0;            // computing, recomputing included
  // No policy of the same kinds that fits takes less: whatever the search left out is above it.
  double least_step_seconds = 0;
  // (step - least) / step; 0: the policy is optimal.
  double gap() const;
};

// Throws what Predictor and step_seconds throw.
Plan make_plan(const Predictor& predictor, const ModelShape& shape, const StepSeconds& seconds,
               const PlanRequest& request);

// The stack's problem with the choices kFull, kNone and, where `kept` is not null, kSelected, in
// this order: read off the predictions in which all layers are treated alike.
Stack make_stack(const Predictor& predictor, const ModelShape& shape, const StepSeconds& seconds,
                 const KeptOperators* kept);

}  // namespace ljtrain::recompute
