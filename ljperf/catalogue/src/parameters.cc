#include "catalogue/parameters.h"

namespace ljtrain::ljperf {
namespace {

std::int64_t norm_parameters(const ModelConfig& config, std::int64_t size) {
  return config.norm_bias ? 2 * size : size;
}

std::int64_t attention_parameters(const ModelConfig& config) {
  std::int64_t projected = config.query_size() + 2 * config.kv_size();
  std::int64_t count = config.hidden_size * projected + config.query_size() * config.hidden_size;
  count += config.qkv_bias ? projected : 0;
  count += config.attention_output_bias ? config.hidden_size : 0;
  count += config.qk_norms ? 2 * config.head_dim : 0;
  return count;
}

std::int64_t mlp_parameters(const ModelConfig& config, std::int64_t ffn_size) {
  std::int64_t in = config.gated_mlp ? 2 : 1;
  std::int64_t count = (in + 1) * config.hidden_size * ffn_size;
  count += config.mlp_bias ? in * ffn_size + config.hidden_size : 0;
  return count;
}

// Of one layer where a token's MLP is `experts` routed experts (of which the router knows all).
std::int64_t layer_parameters(const ModelConfig& config, const LayerSpec& layer,
                              std::int64_t experts) {
  std::int64_t count = attention_parameters(config) +
                       config.norms_per_layer * norm_parameters(config, config.hidden_size);
  if (!layer.mixture_of_experts) {
    return count + mlp_parameters(config, config.ffn_size);
  }
  count += config.hidden_size * config.moe.experts;  // router
  count += experts * mlp_parameters(config, config.moe.ffn_size);
  if (config.moe.shared_ffn_size > 0) {
    count += mlp_parameters(config, config.moe.shared_ffn_size);
  }
  return count;
}

std::int64_t head_parameters(const ModelConfig& config) {
  std::int64_t count = config.tied_embeddings ? 0 : config.vocab_size * config.hidden_size;
  if (config.mlm_head) {
    count += config.hidden_size * config.hidden_size + config.hidden_size +
             norm_parameters(config, config.hidden_size) + config.vocab_size;
    // transformers ties BERT's decoder bias to the head's own bias together with the weights.
    count += config.tied_embeddings ? 0 : config.vocab_size;
  }
  return count;
}

}  // namespace

ParameterCounts count_parameters(const ModelConfig& config) {
  ParameterCounts counts;
  counts.embedding =
      config.hidden_size * (config.vocab_size + config.learned_positions + config.type_vocab_size);
  counts.head = head_parameters(config);
  // One norm beside the layers: after the embeddings (BERT) or after the last layer (the others).
  std::int64_t beside =
      counts.embedding + counts.head + norm_parameters(config, config.hidden_size);
  counts.total = beside;
  counts.active = beside;
  for (const LayerSpec& layer : config.layers) {
    counts.layers.push_back(layer_parameters(config, layer, config.moe.experts));
    counts.active_layers.push_back(layer_parameters(config, layer, config.moe.top_k));
    counts.total += counts.layers.back();
    counts.active += counts.active_layers.back();
  }
  counts.trainable = counts.total;
  return counts;
}

}  // namespace ljtrain::ljperf
