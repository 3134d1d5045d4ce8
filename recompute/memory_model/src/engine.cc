#include "engine.h"

#include <algorithm>
#include <cmath>

namespace ljtrain::recompute {

double EngineMemory::share(int number) const {
  return std::ceil(parameter(number).elements / ranks());
}

double EngineMemory::shares(bool trainable_only) const {
  double sum = 0;
  for (int i = 0; i < std::ssize(parameters().all); ++i) {
    sum += parameter(i).trainable || !trainable_only ? share(i) : 0;
  }
  return sum;
}

double EngineMemory::largest_trainable() const {
  double largest = 0;
  for (const SizedParameter& candidate : parameters().all) {
    largest = std::max(largest, candidate.trainable ? candidate.elements : 0);
  }
  return largest;
}

void EngineMemory::communicate(Ledger& ledger, double bytes) const {
  if (model_.setup().backend == Backend::kGloo) {
    ledger.touch(Component::kCommunication, bytes);
  }
}

double EngineMemory::optimizer_state(double bytes) const {
  bool elsewhere = knobs().offload_optimizer && model_.setup().platform == Platform::kCuda;
  return elsewhere ? 0 : bytes;
}

std::unique_ptr<EngineMemory> make_engine(const PreparedModel& model) {
  switch (model.setup().engine) {
    case Engine::kSingle:
    case Engine::kDdp:
      return make_replicated(model);
    case Engine::kFsdp2:
      return make_fsdp2(model);
    case Engine::kZero0:
      return make_zero0(model);
    case Engine::kZero1:
    case Engine::kZero2:
      return make_zero12(model);
    case Engine::kZero3:
      return make_zero3(model);
  }
  return make_replicated(model);
}

}  // namespace ljtrain::recompute
