// A conservative estimate of the memory that training takes on one rank, for one purpose: to refuse
// a run that cannot fit before it starts. It is not a prediction: it counts each part at its worst
// and adds them as if they peaked together. It does not count what building the model takes before
// it is sharded, nor what the data loader holds.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "catalogue/model_config.h"

namespace ljtrain::ljperf {

// Who keeps which share of the training state. ZeRO stages as in arXiv:1910.02054, section 5.
enum class Sharding : std::uint8_t { kDdp, kZero0, kZero1, kZero2, kZero3, kFsdp2 };

// The sharding of an engine ("deepspeed", "fsdp", "ddp"); `zero_stage` (0 to 3) counts for
// deepspeed only.
Sharding sharding_of(std::string_view engine, int zero_stage);

// One training step as one rank sees it, with AdamW.
struct TrainingShape {
  std::int64_t seq = 0;          // tokens in a sequence
  std::int64_t micro_batch = 1;  // sequences
  std::int64_t ranks = 1;
  Sharding sharding = Sharding::kZero3;
  bool checkpointing = true;   // every layer recomputed; false: every layer keeps its activations
  bool half_precision = true;  // bf16 or fp16 with fp32 masters; false: fp32 throughout
};

// Bytes on one rank, by component.
struct MemoryEstimate {
  double weights = 0;  // the rank's share, in the precision they are kept in
  double gradients = 0;
  double master_weights = 0;  // fp32 copies, where the weights themselves are bf16
  double optimizer = 0;       // Adam's two moments, fp32
  double activations = 0;     // layer inputs, and one layer while it is recomputed
  double logits = 0;          // with their fp32 copy, softmax and gradient
  double gathered = 0;        // parameters gathered for use, their gradients, and buckets
  double framework = 0;       // Python, PyTorch, and a device's context

  double total() const;
  // Names and bytes of all components, in this order.
  std::array<std::pair<std::string_view, double>, 8> components() const;
};

MemoryEstimate estimate_memory(const ModelConfig& config, const TrainingShape& shape);

// One sentence: what is needed, by how much that passes `limit_bytes`, and the largest component.
std::string describe_shortfall(const MemoryEstimate& estimate, double limit_bytes);

}  // namespace ljtrain::ljperf
