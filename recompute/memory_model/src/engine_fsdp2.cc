// FSDP2 (PyTorch 2.13: torch/distributed/fsdp/_fully_shard) as accelerate 1.15 sets it up: the
// embedding, each layer, and norm with head are groups; fp32 shards, bf16 gathered and reduced. The
// group of norm and head stays whole from forward to backward.
#include <algorithm>

#include "engine.h"

namespace ljtrain::recompute {
namespace {

class Fsdp2 final : public EngineMemory {
 public:
  explicit Fsdp2(const PreparedModel& model) : EngineMemory(model) {
    groups_.resize(model.segments());
    for (int number = 0; number < std::ssize(parameters().all); ++number) {
      group_of(number).shard += share(number);
    }
  }

  ComponentBytes static_state() const override {
    ComponentBytes bytes{};
    auto at = [&bytes](Component component) -> double& {
      return bytes[static_cast<std::size_t>(component)];
    };
    at(Component::kWeights) = knobs().fsdp_parameter_bytes * shares(false);
    at(Component::kOptimizer) =
        optimizer_state(model().setup().optimizer_bytes_per_parameter * shares(true));
    return bytes;
  }

  void begin_micro_step(Ledger& ledger, const std::vector<int>& schedule, bool first,
                        bool last) override {
    EngineMemory::begin_micro_step(ledger, schedule, first, last);
  }

  void enter(Ledger& ledger, std::size_t segment, Phase phase) override {
    bool tail = segment + 1 == groups_.size();
    if (phase == Phase::kForward) {
      Group& group = embedding_in_tail() && segment == 0 ? groups_.back() : groups_[segment];
      gather(ledger, group);
      unshard(ledger, group, phase);
    } else if (tail) {
      // The root's forward has ended. Of its group, the loss comes before what the group's hook
      // waits for, the gradient of the logits.
      ledger.free(Component::kCommunication, gathered_before_);
      gathered_before_ = 0;
      awaits_logits_ = true;
    } else {
      begin_backward(ledger, segment);
    }
  }

  void use(Ledger& ledger, int /*module*/) override {
    if (awaits_logits_) {
      awaits_logits_ = false;
      begin_backward(ledger, groups_.size() - 1);
    }
  }

  void leave(Ledger& ledger, std::size_t segment, Phase phase) override {
    bool tail = segment + 1 == groups_.size();
    if (phase == Phase::kForward) {
      if (knobs().reshard_after_forward && !tail) {
        reshard(ledger, groups_[segment]);
      }
      return;
    }
    // A group with the embedding has no input with a gradient, so its hook comes with the last.
    if (!(tail && embedding_in_tail())) {
      finish_backward(ledger, groups_[segment]);
    }
    if (segment == 0 && embedding_in_tail()) {
      finish_backward(ledger, groups_.back());
    }
  }

  void gradient(Ledger& /*ledger*/, int number, double bytes) override {
    Group& group = group_of(number);
    group.gradients += bytes;
    if (ranks() > 1 && number >= group.last_parameter) {
      group.last_parameter = number;
      group.last_gradient = bytes;
    }
  }

  void end_backward(Ledger& ledger) override {
    for (Group& group : groups_) {
      reshard(ledger, group);
    }
    ledger.settle(Component::kCommunication, 0);
    reduce_input_ = 0;
    gathered_before_ = 0;
  }

  void optimizer_step(Ledger& ledger) override { ledger.settle(Component::kGradients, 0); }

 private:
  struct Group {
    double shard = 0;      // elements of a rank
    double gathered = 0;   // bytes of the all-gather's output that waits to be copied out
    double unsharded = 0;  // bytes
    double gradients = 0;  // bytes, not reduced yet
    // The gradient of the group's last parameter: foreach_reduce's loop variable keeps it alive.
    int last_parameter = -1;
    double last_gradient = 0;
    bool in_flight = false;
  };

  // accelerate puts a shared embedding into the group of norm and head.
  bool embedding_in_tail() const { return model().shape().tied_embeddings; }
  Group& group_of(int number) {
    auto segment = static_cast<std::size_t>(parameter(number).segment);
    return segment == 0 && embedding_in_tail() ? groups_.back() : groups_[segment];
  }

  double whole(const Group& group) const { return kBf16Bytes * group.shard * ranks(); }

  void begin_backward(Ledger& ledger, std::size_t segment) {
    gather(ledger, groups_[segment]);
    unshard(ledger, groups_[segment], Phase::kBackward);
    if (segment > 0) {
      gather(ledger, groups_[segment - 1]);  // while this one computes
    }
  }

  // foreach_all_gather: the shard is cast to bf16, copied into its place and gathered around it.
  void gather(Ledger& ledger, Group& group) {
    if (group.unsharded > 0 || group.in_flight || group.shard == 0) {
      return;
    }
    group.in_flight = true;
    if (ranks() > 1) {
      group.gathered = whole(group);
      double cast = knobs().fsdp_parameter_bytes > kBf16Bytes ? kBf16Bytes * group.shard : 0;
      ledger.allocate(Component::kCommunication, cast);
      ledger.allocate(Component::kCommunication, group.gathered);
      communicate(ledger, group.gathered);
      ledger.free(Component::kCommunication, cast);
    }
  }

  // wait_for_unshard: copied out into the parameters. In forward the all-gather's output lives on
  // until the next group is copied out.
  void unshard(Ledger& ledger, Group& group, Phase phase) {
    if (!group.in_flight) {
      return;
    }
    group.in_flight = false;
    group.unsharded = whole(group);
    ledger.allocate(Component::kWeights, group.unsharded);
    if (phase == Phase::kForward) {
      ledger.free(Component::kCommunication, gathered_before_);
      gathered_before_ = group.gathered;
    } else {
      ledger.free(Component::kCommunication, group.gathered);
    }
    group.gathered = 0;
  }

  void finish_backward(Ledger& ledger, Group& group) {
    reshard(ledger, group);
    reduce(ledger, group);
  }

  void reshard(Ledger& ledger, Group& group) {
    ledger.free(Component::kWeights, group.unsharded);
    group.unsharded = 0;
  }

  // foreach_reduce: copied into one buffer, which lives until the next group's reduction; the
  // result is cast to the precision of the shards.
  void reduce(Ledger& ledger, Group& group) {
    ledger.free(Component::kCommunication, reduce_input_);
    reduce_input_ = 0;
    if (group.gradients == 0) {
      return;
    }
    double elements = group.gradients / kBf16Bytes / ranks();
    double accumulated = knobs().fsdp_reduce_bytes * elements * ranks();
    if (!last_micro_step()) {
      // Not reduced: kept whole, in the precision of the reduction.
      ledger.free(Component::kGradients, group.gradients - group.last_gradient);
      ledger.allocate(Component::kGradients, first_micro_step() ? accumulated : 0);
      ledger.free(Component::kGradients, group.last_gradient);
      group.gradients = 0;
      group.last_parameter = -1;
      return;
    }
    if (!first_micro_step()) {  // added to what was kept
      ledger.free(Component::kGradients, group.gradients);
      group.last_gradient *= accumulated / group.gradients;
      group.gradients = accumulated;
    }
    reduce_input_ = knobs().fsdp_reduce_bytes * elements * ranks();
    ledger.allocate(Component::kCommunication, reduce_input_);
    ledger.free(Component::kGradients, group.gradients - group.last_gradient);
    double output = knobs().fsdp_reduce_bytes * elements;
    double reduced = knobs().fsdp_parameter_bytes * elements;
    ledger.allocate(Component::kGradients, output);
    if (ranks() > 1) {
      communicate(ledger, reduce_input_);
    }
    if (output != reduced) {
      ledger.allocate(Component::kGradients, reduced);
      ledger.free(Component::kGradients, output);
    }
    ledger.free(Component::kGradients, group.last_gradient);
    group.gradients = 0;
    group.last_parameter = -1;
  }

  std::vector<Group> groups_;
  double gathered_before_ = 0;
  double reduce_input_ = 0;
  bool awaits_logits_ = false;
};

}  // namespace

std::unique_ptr<EngineMemory> make_fsdp2(const PreparedModel& model) {
  return std::make_unique<Fsdp2>(model);
}

}  // namespace ljtrain::recompute
