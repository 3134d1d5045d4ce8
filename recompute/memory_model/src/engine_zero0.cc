// DeepSpeed without ZeRO, bf16 (0.19.8: runtime/engine.py, runtime/fp16/unfused_optimizer.py): bf16
// weights and gradients, fp32 masters of every parameter, fp32 copies of all gradients in the
// optimizer's step.
#include <algorithm>

#include "engine.h"

namespace ljtrain::recompute {
namespace {

// engine.py, buffered_allreduce_fallback: elements that are copied into one buffer and reduced.
constexpr double kReduceElements = 5e8;
// utils.py, CheckOverflow: an fp32 copy of a gradient and three masks of a byte an element.
constexpr double kOverflowBytes = kFp32Bytes + 3;

class Zero0 final : public EngineMemory {
 public:
  using EngineMemory::EngineMemory;

  ComponentBytes static_state() const override {
    ComponentBytes bytes{};
    auto at = [&bytes](Component component) -> double& {
      return bytes[static_cast<std::size_t>(component)];
    };
    at(Component::kWeights) = kBf16Bytes * parameters().elements;
    at(Component::kMasterWeights) = optimizer_state(kFp32Bytes * parameters().trainable);
    at(Component::kOptimizer) =
        optimizer_state(model().setup().optimizer_bytes_per_parameter * parameters().trainable);
    return bytes;
  }

  void gradient(Ledger& ledger, int /*parameter*/, double bytes) override {
    if (!first_micro_step()) {
      ledger.free(Component::kGradients, bytes);
    }
  }

  void end_backward(Ledger& ledger) override {
    if (last_micro_step() && ranks() > 1) {
      ledger.touch(Component::kCommunication,
                   kBf16Bytes * std::min(parameters().trainable, kReduceElements));
    }
  }

  void optimizer_step(Ledger& ledger) override {
    ledger.touch(Component::kOptimizer, kOverflowBytes * largest_trainable());
    ledger.allocate(Component::kGradients, kFp32Bytes * parameters().trainable);
    ledger.settle(Component::kGradients, 0);
  }
};

}  // namespace

std::unique_ptr<EngineMemory> make_zero0(const PreparedModel& model) {
  return std::make_unique<Zero0>(model);
}

}  // namespace ljtrain::recompute
