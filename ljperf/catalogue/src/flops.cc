#include "catalogue/flops.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "catalogue/parameters.h"

namespace ljtrain::ljperf {
namespace {

constexpr double kMultiplyAdd = 2;
constexpr double kForwardAndBackward = 3;

constexpr std::array<std::pair<FlopsConvention, std::string_view>, 4> kNames{{
    {FlopsConvention::kMegatron, "megatron"},
    {FlopsConvention::kTorchtitan, "torchtitan"},
    {FlopsConvention::kPalm, "palm"},
    {FlopsConvention::kSixN, "6n"},
}};

// Keys that a query meets, averaged over the sequence. The causal triangle is taken as S/2, not
// (S + 1)/2, as every published figure does; a window is the same triangle cut off at W.
double keys_per_query(const ModelConfig& config, const LayerSpec& layer, double seq,
                      AttentionCount count) {
  if (count == AttentionCount::kWhole || config.task == Task::kMaskedLm) {
    return seq;
  }
  double window = layer.window == 0 ? seq : std::min(seq, static_cast<double>(layer.window));
  return window - window * window / (2 * seq);
}

double mlp_weights(const ModelConfig& config, std::int64_t ffn_size) {
  double matrices = config.gated_mlp ? 3 : 2;
  return matrices * static_cast<double>(config.hidden_size) * static_cast<double>(ffn_size);
}

double layer_forward(const ModelConfig& config, const LayerSpec& layer, double seq,
                     AttentionCount count) {
  auto hidden = static_cast<double>(config.hidden_size);
  auto query = static_cast<double>(config.query_size());
  double weights = hidden * (2 * query + 2 * static_cast<double>(config.kv_size()));
  if (layer.mixture_of_experts) {
    const MixtureOfExperts& moe = config.moe;
    weights += hidden * static_cast<double>(moe.experts);  // router
    weights += static_cast<double>(moe.top_k) * mlp_weights(config, moe.ffn_size);
    weights += mlp_weights(config, moe.shared_ffn_size);
  } else {
    weights += mlp_weights(config, config.ffn_size);
  }
  // Scores, and the weighted sum of values: each a product over the query's width per key.
  double attention = 2 * query * keys_per_query(config, layer, seq, count);
  return kMultiplyAdd * (weights + attention);
}

// Forward FLOPs per token of one layer under a convention that counts parameters.
double layer_forward_by_parameters(const ModelConfig& config, std::int64_t active, double seq,
                                   FlopsConvention convention) {
  double attention =
      convention == FlopsConvention::kSixN ? 0 : 2 * static_cast<double>(config.query_size()) * seq;
  return kMultiplyAdd * (static_cast<double>(active) + attention);
}

// Forward FLOPs per token of each layer.
std::vector<double> layers_forward(const ModelConfig& config, std::int64_t seq,
                                   FlopsConvention convention) {
  if (convention == FlopsConvention::kMegatron) {
    return forward_matmul_flops(config, seq, AttentionCount::kVisible).layers;
  }
  std::vector<double> layers;
  for (std::int64_t active : count_parameters(config).active_layers) {
    layers.push_back(
        layer_forward_by_parameters(config, active, static_cast<double>(seq), convention));
  }
  return layers;
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

std::string_view flops_convention_name(FlopsConvention convention) {
  for (const auto& [value, name] : kNames) {
    if (value == convention) {
      return name;
    }
  }
  return "";
}

FlopsConvention parse_flops_convention(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) {
      return value;
    }
  }
  throw base::user_error(
      "`{}` is no FLOPs convention; choose megatron, torchtitan, palm or 6n (docs/models.md)",
      name);
}

double ForwardFlops::total() const { return sum(layers) + head; }

ForwardFlops forward_matmul_flops(const ModelConfig& config, std::int64_t seq,
                                  AttentionCount count) {
  ForwardFlops flops;
  for (const LayerSpec& layer : config.layers) {
    flops.layers.push_back(layer_forward(config, layer, static_cast<double>(seq), count));
  }
  auto hidden = static_cast<double>(config.hidden_size);
  flops.head = kMultiplyAdd * hidden * static_cast<double>(config.vocab_size);
  if (config.mlm_head) {
    flops.head += kMultiplyAdd * hidden * hidden;
  }
  return flops;
}

double model_flops_per_token(const ModelConfig& config, std::int64_t seq,
                             FlopsConvention convention) {
  if (convention == FlopsConvention::kMegatron) {
    return kForwardAndBackward *
           forward_matmul_flops(config, seq, AttentionCount::kVisible).total();
  }
  ParameterCounts counts = count_parameters(config);
  auto parameters = static_cast<double>(counts.active);
  if (convention == FlopsConvention::kTorchtitan) {
    parameters -= static_cast<double>(counts.embedding);
    if (config.tied_embeddings) {
      parameters += static_cast<double>(config.vocab_size * config.hidden_size);
    }
  }
  double attention = 0;
  if (convention != FlopsConvention::kSixN) {
    attention = 2 * static_cast<double>(config.layer_count()) *
                static_cast<double>(config.query_size()) * static_cast<double>(seq);
  }
  return kForwardAndBackward * kMultiplyAdd * (parameters + attention);
}

double model_flops_per_step(const ModelConfig& config, std::int64_t seq, std::int64_t tokens,
                            FlopsConvention convention) {
  return static_cast<double>(tokens) * model_flops_per_token(config, seq, convention);
}

double hardware_flops_per_token(const ModelConfig& config, std::int64_t seq,
                                FlopsConvention convention, const std::vector<bool>& recomputed) {
  double flops = model_flops_per_token(config, seq, convention);
  std::vector<double> layers = layers_forward(config, seq, convention);
  for (std::size_t i = 0; i < std::min(layers.size(), recomputed.size()); ++i) {
    flops += recomputed[i] ? layers[i] : 0;
  }
  return flops;
}

double hardware_flops_per_token(const ModelConfig& config, std::int64_t seq,
                                FlopsConvention convention, std::int64_t recomputed_layers) {
  std::vector<double> layers = layers_forward(config, seq, convention);
  layers.resize(std::clamp<std::int64_t>(recomputed_layers, 0, config.layer_count()));
  return model_flops_per_token(config, seq, convention) + sum(layers);
}

}  // namespace ljtrain::ljperf
