// A profile's segments with sizes put in, and the model's parameters and modules, ready to be
// played.
#pragma once

#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "memory_model/model_shape.h"
#include "memory_model/policy.h"
#include "memory_model/prediction.h"
#include "memory_model/profile.h"
#include "memory_model/training.h"

namespace ljtrain::recompute {

// One thing that happens in a pass over a segment.
struct PassItem {
  enum class Kind : std::uint8_t {
    kAllocate,  // tensor `index`
    kFree,      // tensor `index`
    kGradient,  // tensor `index`, a parameter's gradient, is ready for the engine
    kUse,       // module `index` (of the segment) is about to compute
    kDone,      // module `index` has computed
    kAutocastEnds,
  };
  Kind kind;
  int index;
};

struct SizedTensor {
  double bytes = 0;
  Component component = Component::kWorkingSet;
  Role role = Role::kTemporary;
  int parameter = -1;  // of the segment
};

// A segment under one policy.
struct SizedSegment {
  std::vector<SizedTensor> tensors;
  std::vector<PassItem> forward;
  std::vector<PassItem> backward;
  double casts = 0;  // bytes of casts that end with autocast
};

struct SizedParameter {
  double elements = 0;
  bool trainable = true;
  bool decays = true;  // weight decay: matrices; not norms and biases
  // Autograd saves views of it (transformers' grouped experts), not the parameter itself.
  bool saved_as_view = false;
  int segment = 0;  // 0: prologue, 1 ..: layers, last: epilogue
};

// What an engine gathers and releases together: a module that owns parameters directly.
struct Module {
  std::vector<int> parameters;  // numbers in Parameters::all
  double elements = 0;
};

// All parameters of the model, in the order of its modules.
struct Parameters {
  std::vector<SizedParameter> all;
  std::vector<Module> modules;
  // Of each segment, where its parameters and modules start; a shared one (tied embeddings) points
  // at its first owner.
  std::vector<std::vector<int>> of_segment;          // [segment][local] -> all
  std::vector<std::vector<int>> modules_of_segment;  // [segment][local] -> modules
  double elements = 0;
  double trainable = 0;
};

class PreparedModel {
 public:
  // As Predictor's constructor.
  PreparedModel(const Profile& profile, ModelShape shape, TrainingSetup setup);

  std::size_t layers() const { return shape_.layers.size(); }
  std::size_t segments() const { return layers() + 2; }
  const TrainingSetup& setup() const { return setup_; }
  const ModelShape& shape() const { return shape_; }
  const Sizes& sizes() const { return sizes_; }
  const Parameters& parameters() const { return parameters_; }
  const std::vector<std::string>& assumptions() const { return assumptions_; }
  // Token numbers and labels of a micro-batch.
  double input_bytes() const { return input_bytes_; }
  // The first layer's input is the embedding's output itself, which the model's forward holds to
  // its end.
  bool holds_first_input() const { return holds_first_input_; }

  // Under kNone or kFull; kSelected depends on the kept operators: sized by sized_selected().
  const SizedSegment& prologue() const { return prologue_; }
  const SizedSegment& epilogue() const { return epilogue_; }
  const SizedSegment& layer(LayerKind kind, bool recomputed) const;
  SizedSegment selected_layer(LayerKind kind, const std::set<std::string, std::less<>>& kept) const;
  const Segment& traced_layer(LayerKind kind, bool recomputed) const;

 private:
  const Segment& traced_prologue() const;
  void choose_variants();
  void size_segments();
  void count_parameters();
  void add_parameters(const Segment& segment, int number);

  Profile profile_;  // a copy: selections and costs look at it again
  ModelShape shape_;
  TrainingSetup setup_;
  Sizes sizes_;
  const Variant* eager_ = nullptr;
  const Variant* checkpointed_ = nullptr;
  SizedSegment prologue_;
  SizedSegment epilogue_;
  std::array<SizedSegment, 4> kept_;        // by LayerKind
  std::array<SizedSegment, 4> recomputed_;  // by LayerKind
  Parameters parameters_;
  double input_bytes_ = 0;
  bool holds_first_input_ = false;
  std::vector<std::string> assumptions_;
};

// How local modules are formed: parameters of a segment by the module that owns them.
std::vector<std::vector<int>> local_modules(const Segment& segment);

// Tokens that a fused head and loss work on at a time: PyTorch's linear_cross_entropy, its fast
// setting.
inline constexpr std::int64_t kFusedLossChunk = 256;

// Puts sizes into a segment. `saved` is the component of what waits for the backward, `transient`
// of the rest.
SizedSegment size_segment(const Segment& segment, const Sizes& sizes, const TrainingSetup& setup,
                          Component saved, Component transient);

// 512-byte blocks on CUDA, as the caching allocator hands them out; hosts as asked for.
double rounded_bytes(double bytes, Platform platform);

// The checkpointed segment with the outputs of `kept` operators kept in forward and not computed
// again in backward.
Segment keep_operators(const Segment& checkpointed, const std::set<std::string, std::less<>>& kept);

}  // namespace ljtrain::recompute
