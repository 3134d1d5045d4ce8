#include "composition.h"

#include <array>
#include <optional>
#include <utility>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

// What a CUDA context takes, and NCCL's buffers for one communicator: common figures, see
// docs/recompute.md. Not part of what PyTorch reports as allocated or reserved.
constexpr double kCudaContextBytes = 0.5 * 1024 * 1024 * 1024;
constexpr double kNcclBytes = 0.4 * 1024 * 1024 * 1024;

// Of the host's random generator: torch.utils.checkpoint keeps it for every recomputed region.
constexpr double kGeneratorState = 5056;

class Step {
 public:
  Step(const PreparedModel& model, const Policy& policy, EngineMemory& engine, Ledger& ledger)
      : model_(model), engine_(engine), ledger_(ledger) {
    if (policy.layers.size() != model.layers()) {
      throw base::user_error("the policy names {} layers, the model has {}", policy.layers.size(),
                             model.layers());
    }
    resolve(policy);
    make_schedule();
  }

  void play() {
    engine_.set_recomputed(recomputed_);
    const std::int64_t accumulation = model_.setup().gradient_accumulation;
    // The Trainer fetches the batches of all micro-steps before the first.
    ledger_.allocate(Component::kActivations,
                     model_.input_bytes() * static_cast<double>(accumulation));
    // Micro-steps after the first are alike until the last.
    if (accumulation > 1) {
      play_micro_step(true, false);
    }
    play_micro_step(accumulation == 1, true);
    ledger_.begin_pass(Phase::kOptimizer, static_cast<int>(model_.layers()));
    engine_.optimizer_step(ledger_);
    ledger_.end_pass();
  }

 private:
  using Kind = PassItem::Kind;

  void resolve(const Policy& policy) {
    segments_.push_back(&model_.prologue());
    recomputed_.assign(model_.segments(), false);
    for (std::size_t i = 0; i < policy.layers.size(); ++i) {
      LayerKind kind = model_.shape().layers[i];
      recomputed_[i + 1] = policy.layers[i] != LayerPolicy::kNone;
      if (policy.layers[i] == LayerPolicy::kSelected) {
        std::optional<SizedSegment>& selected = selected_[static_cast<std::size_t>(kind)];
        if (!selected.has_value()) {
          selected = model_.selected_layer(kind, policy.kept_operators);
        }
        segments_.push_back(&*selected);
      } else {
        segments_.push_back(&model_.layer(kind, policy.layers[i] == LayerPolicy::kFull));
      }
    }
    segments_.push_back(&model_.epilogue());
  }

  bool is_layer(std::size_t segment) const { return segment > 0 && segment + 1 < segments_.size(); }
  // Decoder layers may be gathered whole; what is around them is not.
  bool is_leaf(std::size_t segment) const {
    return model_.setup().knobs.leaf_layers && is_layer(segment);
  }
  int global_module(std::size_t segment, int local) const {
    return model_.parameters().modules_of_segment[segment][static_cast<std::size_t>(local)];
  }

  template <typename Visit>
  void for_each_use(std::size_t segment, const std::vector<PassItem>& items, Visit visit) {
    for (const PassItem& item : items) {
      if (item.kind == Kind::kUse) {
        visit(global_module(segment, item.index));
      }
    }
  }

  void make_schedule() {
    auto add = [this](int module) { schedule_.push_back(module); };
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      for_each_use(i, segments_[i]->forward, add);
    }
    for (std::size_t i = segments_.size(); i-- > 0;) {
      for_each_use(i, segments_[i]->backward, add);
    }
  }

  void play_micro_step(bool first, bool last) {
    engine_.begin_micro_step(ledger_, schedule_, first, last);
    double inputs = ledger_.at(Component::kActivations);
    casts_ended_ = false;
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      if (i + 1 == segments_.size() && held_input_ > 0) {
        ledger_.free(Component::kLayerInputs, held_input_);
        held_input_ = 0;
      }
      pass(i, Phase::kForward);
    }
    end_autocast();
    for (std::size_t i = segments_.size(); i-- > 0;) {
      pass(i, Phase::kBackward);
    }
    ledger_.begin_pass(Phase::kReduction, static_cast<int>(model_.layers()));
    for (Component component :
         {Component::kLayerInputs, Component::kWorkingSet, Component::kLogits}) {
      ledger_.settle(component, 0);
    }
    ledger_.settle(Component::kActivations,
                   last ? inputs - model_.input_bytes() *
                                       static_cast<double>(model_.setup().gradient_accumulation)
                        : inputs);
    engine_.end_backward(ledger_);
    ledger_.end_pass();
  }

  void pass(std::size_t segment, Phase phase) {
    ledger_.begin_pass(phase, static_cast<int>(segment) - 1);
    engine_.enter(ledger_, segment, phase);
    bool forward = phase == Phase::kForward;
    const std::vector<PassItem>& items =
        forward ? segments_[segment]->forward : segments_[segment]->backward;
    if (is_leaf(segment)) {
      for_each_use(segment, items, [this](int module) { engine_.use(ledger_, module); });
    }
    for (const PassItem& item : items) {
      play_item(segment, forward, item);
    }
    if (is_leaf(segment)) {
      for_each_use(segment, items, [this](int module) { engine_.done(ledger_, module); });
    }
    if (recomputed_[segment] && model_.setup().platform == Platform::kHost) {
      ledger_.allocate(Component::kLayerInputs, forward ? kGeneratorState : -kGeneratorState);
    }
    engine_.leave(ledger_, segment, phase);
    ledger_.end_pass();
  }

  void play_item(std::size_t segment, bool forward, const PassItem& item) {
    switch (item.kind) {
      case Kind::kAllocate: {
        const SizedTensor& tensor = tensor_of(segment, item);
        ledger_.allocate(tensor.component, tensor.bytes);
        break;
      }
      case Kind::kFree: {
        const SizedTensor& tensor = tensor_of(segment, item);
        if (forward && segment == 1 && tensor.role == Role::kInput && model_.holds_first_input()) {
          held_input_ = tensor.bytes;
        } else {
          ledger_.free(tensor.component, tensor.bytes);
        }
        break;
      }
      case Kind::kGradient:
        gradient(segment, tensor_of(segment, item));
        break;
      case Kind::kUse:
        if (!is_leaf(segment)) {
          engine_.use(ledger_, global_module(segment, item.index));
        }
        break;
      case Kind::kDone:
        if (!is_leaf(segment)) {
          engine_.done(ledger_, global_module(segment, item.index));
        }
        break;
      case Kind::kAutocastEnds:
        end_autocast();
        break;
    }
  }

  const SizedTensor& tensor_of(std::size_t segment, const PassItem& item) const {
    return segments_[segment]->tensors[static_cast<std::size_t>(item.index)];
  }

  void gradient(std::size_t segment, const SizedTensor& tensor) {
    ledger_.allocate(Component::kGradients, tensor.bytes);
    int number =
        model_.parameters().of_segment[segment][static_cast<std::size_t>(tensor.parameter)];
    const SizedParameter& owner = model_.parameters().all[static_cast<std::size_t>(number)];
    if (std::cmp_not_equal(owner.segment, segment)) {
      shared_gradient_ = tensor.bytes;  // of the head; the embedding's is added to it
      return;
    }
    if (shared_gradient_ > 0 && segment == 0) {
      // Autograd adds the two into a third, as the head's is a view of its product; under autocast
      // the head's is a cast of that, and added to in place.
      if (model_.setup().precision != Precision::kAutocast) {
        ledger_.allocate(Component::kGradients, tensor.bytes);
        ledger_.free(Component::kGradients, tensor.bytes);
      }
      ledger_.free(Component::kGradients, shared_gradient_);
      shared_gradient_ = 0;
    }
    engine_.gradient(ledger_, number, tensor.bytes);
  }

  void end_autocast() {
    if (casts_ended_) {
      return;
    }
    double casts = 0;
    for (const SizedSegment* segment : segments_) {
      casts += segment->casts;
    }
    ledger_.free(Component::kWeights, casts);
    casts_ended_ = true;
  }

  const PreparedModel& model_;
  EngineMemory& engine_;
  Ledger& ledger_;
  std::vector<const SizedSegment*> segments_;
  std::vector<bool> recomputed_;
  std::array<std::optional<SizedSegment>, 4> selected_;
  std::vector<int> schedule_;
  double held_input_ = 0;
  double shared_gradient_ = 0;
  bool casts_ended_ = false;
};

}  // namespace

ComponentBytes resting_state(const PreparedModel& model, const EngineMemory& engine) {
  ComponentBytes bytes = engine.static_state();
  if (model.setup().platform == Platform::kCuda) {
    bytes[static_cast<std::size_t>(Component::kFramework)] = model.setup().framework_bytes.value_or(
        kCudaContextBytes + (model.setup().ranks > 1 ? kNcclBytes : 0));
  }
  return bytes;
}

void play_step(const PreparedModel& model, const Policy& policy, EngineMemory& engine,
               Ledger& ledger) {
  Step(model, policy, engine, ledger).play();
}

}  // namespace ljtrain::recompute
