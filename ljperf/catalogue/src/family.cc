#include "family.h"

#include <array>

namespace ljtrain::ljperf {
namespace {

constexpr std::int64_t kDefaultWindow = 4096;

constexpr Family kBert{.model_type = "bert",
                       .architecture = "BertForMaskedLM",
                       .task = Task::kMaskedLm,
                       .head_dim_key = false,
                       .heads_divide_hidden = true,
                       .tied_by_default = true,
                       .gated_mlp = false,
                       .layer_norm = true,
                       .learned_positions = true,
                       .qkv_bias = Bias::kAlways,
                       .output_bias = Bias::kAlways,
                       .mlp_bias = Bias::kAlways};

constexpr std::array<Family, 13> kFamilies{{
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .kv_heads_nullable = true,
     .heads_divide_hidden = true,
     .qkv_bias = Bias::kByKey,
     .output_bias = Bias::kByKey,
     .mlp_bias = Bias::kByKey},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .default_kv_heads = 8,
     .windows = Windows::kEveryLayer,
     .default_window = kDefaultWindow},
    {.model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .default_kv_heads = 8,
     .windows = Windows::kEveryLayer,
     .experts = Experts::kMixtral},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .default_kv_heads = 32,
     .kv_heads_nullable = true,
     .qkv_bias = Bias::kAlways,
     .windows = Windows::kAfterFullLayers,
     .default_window = kDefaultWindow},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .default_kv_heads = 32,
     .kv_heads_nullable = true,
     .default_head_dim = 128,
     .qk_norms = true,
     .qkv_bias = Bias::kByKey,
     .output_bias = Bias::kByKey,
     .windows = Windows::kAfterFullLayers,
     .default_window = kDefaultWindow},
    {.model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .default_kv_heads = 4,
     .qk_norms = true,
     .qkv_bias = Bias::kByKey,
     .output_bias = Bias::kByKey,
     .windows = Windows::kEveryLayerIfUsed,
     .default_window = kDefaultWindow,
     .experts = Experts::kQwen3},
    {.model_type = "gemma",
     .architecture = "GemmaForCausalLM",
     .default_kv_heads = 16,
     .default_head_dim = 256,
     .tied_by_default = true,
     .qkv_bias = Bias::kByKey,
     .output_bias = Bias::kByKey},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .default_kv_heads = 4,
     .default_head_dim = 256,
     .heads_divide_hidden = true,
     .tied_by_default = true,
     .norms_per_layer = 4,
     .qkv_bias = Bias::kByKey,
     .output_bias = Bias::kByKey,
     .windows = Windows::kAlternating,
     .default_window = kDefaultWindow},
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .default_kv_heads = 4,
     .default_head_dim = 256,
     .heads_divide_hidden = true,
     .tied_by_default = true,
     .norms_per_layer = 4,
     .qk_norms = true,
     .qkv_bias = Bias::kByKey,
     .output_bias = Bias::kByKey,
     .windows = Windows::kAllButEverySixth,
     .default_window = kDefaultWindow},
    {.model_type = "phi3", .architecture = "Phi3ForCausalLM", .windows = Windows::kEveryLayer},
    {.model_type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .keys = {.hidden = "n_embd",
              .layers = "n_layer",
              .heads = "n_head",
              .ffn = "n_inner",
              .positions = "n_positions"},
     .head_dim_key = false,
     .heads_divide_hidden = true,
     .tied_by_default = true,
     .gated_mlp = false,
     .layer_norm = true,
     .learned_positions = true,
     .qkv_bias = Bias::kAlways,
     .output_bias = Bias::kAlways,
     .mlp_bias = Bias::kAlways},
    {.model_type = "mpt",
     .architecture = "MptForCausalLM",
     .keys = {.hidden = "d_model",
              .layers = "n_layers",
              .heads = "n_heads",
              .ffn = "",
              .positions = "max_seq_len",
              .common_positions = false},
     .head_dim_key = false,
     .heads_divide_hidden = true,
     .tied_by_default = true,
     .gated_mlp = false,
     .layer_norm = true,
     .norm_bias = false,
     .alibi = true},
    kBert,
}};

constexpr Family kGenericDecoder{.model_type = "",
                                 .architecture = "",
                                 .kv_heads_nullable = true,
                                 .qkv_bias = Bias::kByKey,
                                 .output_bias = Bias::kByKey,
                                 .mlp_bias = Bias::kByKey,
                                 .windows = Windows::kGeneric,
                                 .experts = Experts::kGeneric};

}  // namespace

const Family* find_family(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) {
      return &family;
    }
  }
  return nullptr;
}

const Family& generic_decoder() { return kGenericDecoder; }
const Family& generic_encoder() { return kBert; }

}  // namespace ljtrain::ljperf
