// One rank, and DistributedDataParallel (PyTorch 2.13: torch/nn/parallel/distributed.py and
// reducer.cpp): every rank holds everything, and DDP's buckets are a second copy of the gradients
// unless gradients are views into them.
#include "engine.h"

namespace ljtrain::recompute {
namespace {

class Replicated final : public EngineMemory {
 public:
  using EngineMemory::EngineMemory;

  ComponentBytes static_state() const override {
    ComponentBytes bytes{};
    auto at = [&bytes](Component component) -> double& {
      return bytes[static_cast<std::size_t>(component)];
    };
    at(Component::kWeights) = weight_bytes() * parameters().elements;
    at(Component::kOptimizer) =
        optimizer_state(model().setup().optimizer_bytes_per_parameter * parameters().trainable);
    if (model().setup().engine == Engine::kDdp) {
      at(Component::kCommunication) = weight_bytes() * parameters().trainable;
    }
    return bytes;
  }

  void gradient(Ledger& ledger, int /*parameter*/, double bytes) override {
    // Accumulated into the one that is there, or copied into DDP's bucket.
    bool in_bucket = model().setup().engine == Engine::kDdp && knobs().gradient_as_bucket_view;
    if (!first_micro_step() || in_bucket) {
      ledger.free(Component::kGradients, bytes);
    }
  }

  void optimizer_step(Ledger& ledger) override {
    if (!model().setup().fused_optimizer) {
      // foreach AdamW: lists of temporaries the size of all parameters.
      ledger.touch(Component::kOptimizer, weight_bytes() * parameters().trainable);
    }
    ledger.settle(Component::kGradients, 0);
  }

 private:
  double weight_bytes() const {
    return model().setup().precision == Precision::kBf16 ? kBf16Bytes : kFp32Bytes;
  }
};

}  // namespace

std::unique_ptr<EngineMemory> make_replicated(const PreparedModel& model) {
  return std::make_unique<Replicated>(model);
}

}  // namespace ljtrain::recompute
