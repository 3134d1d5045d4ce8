// How enumerators are written in JSON, tables and errors.
#include <algorithm>
#include <numeric>

#include "memory_model/model_shape.h"
#include "memory_model/policy.h"
#include "memory_model/prediction.h"
#include "memory_model/profile.h"
#include "memory_model/training.h"

namespace ljtrain::recompute {
namespace {

template <typename Enumerator, std::size_t kCount>
std::string_view name_in(const std::array<std::string_view, kCount>& names, Enumerator value) {
  return names.at(static_cast<std::size_t>(value));
}

}  // namespace

std::string_view mode_name(Mode mode) {
  return name_in(
      std::array<std::string_view, 4>{"eager", "checkpointed", "compiled", "compiled_checkpointed"},
      mode);
}

std::string_view precision_name(Precision precision) {
  return name_in(std::array<std::string_view, 4>{"bf16", "autocast", "fp32", "bf16_autocast"},
                 precision);
}

std::string_view layer_kind_name(LayerKind kind) {
  return name_in(std::array<std::string_view, 4>{"dense", "dense_window", "moe", "moe_window"},
                 kind);
}

std::string_view layer_policy_name(LayerPolicy policy) {
  return name_in(std::array<std::string_view, 3>{"none", "selected", "full"}, policy);
}

std::string_view engine_name(Engine engine) {
  return name_in(std::array<std::string_view, 7>{"one rank", "DDP", "FSDP2", "ZeRO-0", "ZeRO-1",
                                                 "ZeRO-2", "ZeRO-3"},
                 engine);
}

std::string_view component_name(Component component) {
  return name_in(
      std::array<std::string_view, kComponents>{
          "weights", "gradients", "optimizer", "master_weights", "activations", "layer_inputs",
          "working_set", "logits", "communication", "framework", "fragmentation"},
      component);
}

std::string_view phase_name(Phase phase) {
  return name_in(std::array<std::string_view, 4>{"forward", "backward", "reduction", "optimizer"},
                 phase);
}

double total_bytes(const ComponentBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), 0.0);
}

Policy Policy::first_recomputed(std::size_t layers, std::size_t recomputed) {
  Policy policy;
  policy.layers.assign(layers, LayerPolicy::kNone);
  std::fill_n(policy.layers.begin(), std::min(layers, recomputed), LayerPolicy::kFull);
  return policy;
}

Precision mixed_precision(Engine engine) {
  switch (engine) {
    case Engine::kSingle:
    case Engine::kDdp:
      return Precision::kAutocast;
    default:
      return Precision::kBf16;
  }
}

EngineKnobs auto_knobs(std::int64_t hidden) {
  auto size = static_cast<double>(hidden);
  EngineKnobs knobs;
  knobs.reduce_bucket_size = size * size;
  knobs.prefetch_bucket_size = 0.9 * size * size;
  knobs.persistence_threshold = 10 * size;
  return knobs;
}

}  // namespace ljtrain::recompute
