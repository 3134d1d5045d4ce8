#include "catalogue/memory_estimate.h"

#include <algorithm>

#include "base/errors.h"
#include "base/units.h"
#include "catalogue/parameters.h"

namespace ljtrain::ljperf {
namespace {

constexpr double kBf16 = 2;
constexpr double kFp32 = 4;
constexpr double kAdamMoments = 2 * kFp32;
constexpr double kFramework = 1024.0 * 1024 * 1024;
// bf16 logits and their gradient; fp32 copy, log-softmax and gradient.
constexpr double kBytesPerLogit = 2 * kBf16 + 3 * kFp32;
// DeepSpeed's defaults: stage3_max_live_parameters, and reduce_bucket_size of stages 1 and 2.
constexpr double kMostLiveParameters = 1e9;
constexpr double kReduceBucket = 5e8;
// Fraction-free bound on what eager keeps of an attention matrix: scores, softmax and its gradient.
constexpr double kBytesPerScore = 3 * kFp32;

// Bytes a parameter, for the part every rank holds whole and the part that is split over the ranks.
struct StateBytes {
  double weights = 0, weights_split = 0;
  double gradients = 0, gradients_split = 0;
  double master = 0, master_split = 0;
  double moments = 0, moments_split = 0;
};

StateBytes state_bytes(Sharding sharding) {
  switch (sharding) {
    case Sharding::kDdp:
      // fp32 weights, and the bf16 copies that autocast caches during a forward pass.
      return {.weights = kFp32 + kBf16, .gradients = kFp32, .moments = kAdamMoments};
    case Sharding::kZero0:
      return {
          .weights = kBf16, .gradients = kBf16 + kFp32, .master = kFp32, .moments = kAdamMoments};
    case Sharding::kZero1:
      return {.weights = kBf16,
              .gradients = kBf16,
              .gradients_split = kFp32,
              .master_split = kFp32,
              .moments_split = kAdamMoments};
    case Sharding::kZero2:
      return {.weights = kBf16,
              .gradients_split = kBf16 + kFp32,
              .master_split = kFp32,
              .moments_split = kAdamMoments};
    case Sharding::kZero3:
      return {.weights_split = kBf16,
              .gradients_split = kBf16 + kFp32,
              .master_split = kFp32,
              .moments_split = kAdamMoments};
    case Sharding::kFsdp2:
      return {.weights_split = kFp32, .gradients_split = kFp32, .moments_split = kAdamMoments};
  }
  return {};
}

// Parameters gathered at a time, with the buffers their gradients travel in.
double gathered_bytes(const ParameterCounts& counts, const TrainingShape& shape) {
  auto total = static_cast<double>(counts.total);
  auto beside = static_cast<double>(counts.embedding + counts.head);
  auto layer = static_cast<double>(std::ranges::max(counts.layers));
  double largest = std::max(layer, beside);
  switch (shape.sharding) {
    case Sharding::kDdp:
      return kFp32 * total;  // DDP's buckets are a second copy of the gradients
    case Sharding::kZero0:
      return kBf16 * std::min(total, kReduceBucket);
    case Sharding::kZero1:
    case Sharding::kZero2:
      return 2 * kBf16 * std::min(total, kReduceBucket);
    case Sharding::kZero3:
      return kBf16 * std::min(total, std::max(kMostLiveParameters, largest)) + 2 * kBf16 * largest;
    case Sharding::kFsdp2:
      // The tables, and a layer with the next one prefetched; fp32 gradients before they are split.
      return (kBf16 + kFp32) * beside + (2 * kBf16 + kFp32) * layer;
  }
  return 0;
}

double activation_bytes(const ModelConfig& config, const TrainingShape& shape, double tokens) {
  auto hidden = static_cast<double>(config.hidden_size);
  // Under autocast (DDP) the residual stream stays fp32.
  bool autocast = shape.sharding == Sharding::kDdp || !shape.half_precision;
  double inputs =
      static_cast<double>(config.layer_count()) * tokens * hidden * (autocast ? kFp32 : kBf16);
  auto active_ffn = static_cast<double>(config.ffn_size);
  if (config.has_experts()) {
    active_ffn = std::max(active_ffn, static_cast<double>(config.moe.top_k * config.moe.ffn_size +
                                                          config.moe.shared_ffn_size));
  }
  // Norms, residuals, projections, gate and up, each with its gradient; some of it in fp32.
  double elements = 10 * hidden + 4 * static_cast<double>(config.query_size()) +
                    4 * static_cast<double>(config.kv_size()) + 4 * active_ffn;
  double recomputed = kFp32 * tokens * elements;
  // Encoders train with dropout on the attention, for which no kernel without the matrix exists
  // on hosts.
  if (config.task == Task::kMaskedLm) {
    recomputed += kBytesPerScore * tokens * static_cast<double>(shape.seq) *
                  static_cast<double>(config.heads);
  }
  return inputs + recomputed * static_cast<double>(shape.checkpointing ? 1 : config.layer_count());
}

}  // namespace

Sharding sharding_of(std::string_view engine, int zero_stage) {
  if (engine == "fsdp") {
    return Sharding::kFsdp2;
  }
  if (engine == "ddp") {
    return Sharding::kDdp;
  }
  constexpr std::array kStages{Sharding::kZero0, Sharding::kZero1, Sharding::kZero2,
                               Sharding::kZero3};
  if (engine != "deepspeed" || zero_stage < 0 || zero_stage > 3) {
    throw base::user_error(
        "engine `{}` with ZeRO stage {}: engines are deepspeed, fsdp and ddp, and the stages of "
        "deepspeed are 0 to 3",
        engine, zero_stage);
  }
  return kStages[static_cast<std::size_t>(zero_stage)];
}

double MemoryEstimate::total() const {
  double sum = 0;
  for (const auto& [name, bytes] : components()) {
    sum += bytes;
  }
  return sum;
}

std::array<std::pair<std::string_view, double>, 8> MemoryEstimate::components() const {
  return {{{"weights", weights},
           {"gradients", gradients},
           {"master_weights", master_weights},
           {"optimizer", optimizer},
           {"activations", activations},
           {"logits", logits},
           {"gathered", gathered},
           {"framework", framework}}};
}

MemoryEstimate estimate_memory(const ModelConfig& config, const TrainingShape& shape) {
  ParameterCounts counts = count_parameters(config);
  StateBytes state = state_bytes(shape.sharding);
  if (!shape.half_precision) {
    // What was 2 bytes becomes 4, and the masters are the weights: no more in sum, but gradients
    // grow.
    state.gradients += state.gradients > 0 ? kBf16 : 0;
    state.gradients_split += state.gradients_split > 0 ? kBf16 : 0;
    state.weights += state.weights > 0 ? kBf16 : 0;
    state.weights_split += state.weights_split > 0 ? kBf16 : 0;
  }
  auto whole = static_cast<double>(counts.total);
  double split = whole / static_cast<double>(std::max<std::int64_t>(1, shape.ranks));
  double tokens = static_cast<double>(shape.seq) * static_cast<double>(shape.micro_batch);
  return {.weights = state.weights * whole + state.weights_split * split,
          .gradients = state.gradients * whole + state.gradients_split * split,
          .master_weights = state.master * whole + state.master_split * split,
          .optimizer = state.moments * whole + state.moments_split * split,
          .activations = activation_bytes(config, shape, tokens),
          .logits = kBytesPerLogit * tokens * static_cast<double>(config.vocab_size),
          .gathered = gathered_bytes(counts, shape) * (shape.half_precision ? 1 : 2),
          .framework = kFramework};
}

std::string describe_shortfall(const MemoryEstimate& estimate, double limit_bytes) {
  auto components = estimate.components();
  auto largest = std::ranges::max_element(components, {},
                                          [](const auto& component) { return component.second; });
  return fmt::format(
      "about {} a rank is needed (an upper estimate), {} more than the {} there is; the largest "
      "part is {} with {}",
      base::format_bytes(estimate.total()), base::format_bytes(estimate.total() - limit_bytes),
      base::format_bytes(limit_bytes), largest->first, base::format_bytes(largest->second));
}

}  // namespace ljtrain::ljperf
