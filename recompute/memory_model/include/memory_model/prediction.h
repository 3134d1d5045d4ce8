// Predicts the memory of one training step on one rank.
//
// The step is played from the profile's segments: forward through prologue, layers and epilogue,
// backward through them in reverse, with what the engine allocates and frees at each module and
// gradient, then the reduction's end and the optimizer's step. docs/recompute.md explains the
// accounting of each engine and its measured errors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "memory_model/model_shape.h"
#include "memory_model/policy.h"
#include "memory_model/profile.h"
#include "memory_model/training.h"

namespace ljtrain::recompute {

enum class Component : std::uint8_t {
  kWeights,        // the rank's share as kept, and what is gathered of others'
  kGradients,      // in any precision, until the optimizer has used them
  kOptimizer,      // moments, and the temporaries of its step
  kMasterWeights,  // fp32 copies of bf16 weights
  kActivations,    // saved by layers that are not recomputed
  kLayerInputs,    // saved by layers that are
  kWorkingSet,     // what the layer being computed (or recomputed) needs besides
  kLogits,         // head and loss
  kCommunication,  // buckets, buffers of gathering and reducing
  kFramework,      // device context, collective library, caches that live outside tensors
  kFragmentation,  // rounding, and what the caching allocator cannot use
};
inline constexpr std::size_t kComponents = 11;
std::string_view component_name(Component component);  // "weights", "layer_inputs", ...

enum class Phase : std::uint8_t { kForward, kBackward, kReduction, kOptimizer };
std::string_view phase_name(Phase phase);

using ComponentBytes = std::array<double, kComponents>;
double total_bytes(const ComponentBytes& bytes);

// One moment. Each segment's pass gives two, its highest moment and its end.
struct TimelinePoint {
  Phase phase = Phase::kForward;
  int layer = -1;  // -1: prologue; the number of layers: epilogue
  bool highest = false;
  ComponentBytes bytes{};
};

struct Prediction {
  double peak_bytes = 0;
  Phase peak_phase = Phase::kForward;
  int peak_layer = -1;
  ComponentBytes peak_components{};
  // What is there between steps: after an optimizer step, with gradients freed.
  double static_bytes = 0;
  ComponentBytes static_components{};
  std::vector<TimelinePoint> timeline;
  std::vector<std::string> assumptions;
};

// What keeping an operator's outputs in a layer costs and saves, for one layer.
struct OperatorCost {
  std::string name;       // "aten.mm"
  double kept_bytes = 0;  // all its outputs of one layer's forward
  double flops = 0;       // not recomputed if they are kept
  double bytes_moved = 0;
  bool saved_by_autograd = false;  // whether kNone keeps any of them too
};

class PreparedModel;

// Sizes put into a profile once, for many policies. predict() of a model of 126 layers takes well
// under a millisecond.
class Predictor {
 public:
  // Throws UserError when the profile lacks a variant or layer kind that is needed (naming the
  // command that traces it), or a size is out of range.
  Predictor(const Profile& profile, const ModelShape& shape, const TrainingSetup& setup);
  Predictor(Predictor&&) noexcept;
  Predictor& operator=(Predictor&&) noexcept;
  ~Predictor();

  // Throws UserError when `policy` has another number of layers than the model.
  Prediction predict(const Policy& policy) const;
  // The peak alone, without timeline: for searches.
  double peak_bytes(const Policy& policy) const;

  // Of the layers of one kind, in the order of first use.
  std::vector<OperatorCost> operators(LayerKind kind) const;
  // FLOPs and bytes moved by one forward pass of a layer of this kind: what kFull computes twice.
  double layer_flops(LayerKind kind) const;
  double layer_bytes_moved(LayerKind kind) const;
  // Parameters of the model, adapters included.
  double parameters() const;
  double trainable_parameters() const;

 private:
  std::unique_ptr<const PreparedModel> prepared_;
};

// Predictor(profile, shape, setup).predict(policy).
Prediction predict(const Profile& profile, const ModelShape& shape, const TrainingSetup& setup,
                   const Policy& policy);

}  // namespace ljtrain::recompute
