// How transformers builds each model family from its config.json: the defaults of absent keys and
// the parts of a layer. Checked on transformers 5.24 (models/*/configuration_*.py, modeling_*.py);
// tests/test_catalogue_reference.py compares every family with the real thing.
#pragma once

#include <cstdint>
#include <string_view>

#include "catalogue/model_config.h"

namespace ljtrain::ljperf {

// Whether a linear layer has a bias: by the family, or by a key of the configuration.
enum class Bias : std::uint8_t { kNever, kAlways, kByKey };

// Which layers have a sliding window.
enum class Windows : std::uint8_t {
  kNone,
  kEveryLayer,        // mistral, mixtral, phi3: `sliding_window`
  kEveryLayerIfUsed,  // qwen3_moe: the same, where `use_sliding_window` is true
  kAfterFullLayers,   // qwen2, qwen3: `layer_types`, else those from `max_window_layers` on
  kAlternating,       // gemma2: `layer_types`, else every other layer, the first included
  kAllButEverySixth,  // gemma3: `layer_types`, else all but each `sliding_window_pattern`-th
  kGeneric,           // `layer_types`, else every layer where `sliding_window` is in use
};

enum class Experts : std::uint8_t { kNone, kMixtral, kQwen3, kGeneric };

// The names under which a family stores the sizes. transformers also takes the common names where a
// family has its own (`attribute_map`), but not for every key.
struct FamilyKeys {
  std::string_view hidden = "hidden_size";
  std::string_view layers = "num_hidden_layers";
  std::string_view heads = "num_attention_heads";
  std::string_view ffn =
      "intermediate_size";  // "": no key; the MLP is 4 times as wide as the model
  std::string_view positions = "max_position_embeddings";
  bool common_positions = true;  // `max_position_embeddings` is taken too
};

struct Family {
  std::string_view model_type;
  std::string_view architecture;
  FamilyKeys keys;
  Task task = Task::kCausalLm;
  std::int64_t default_kv_heads = 0;  // where the key is absent; 0: as many as heads
  bool kv_heads_nullable = false;     // null means as many as heads; elsewhere it is refused
  std::int64_t default_head_dim = 0;  // 0: hidden_size / heads
  bool head_dim_key = true;           // `head_dim` is read
  bool heads_divide_hidden = false;   // required even where `head_dim` is given
  bool tied_by_default = false;
  bool gated_mlp = true;
  bool layer_norm = false;
  bool norm_bias = true;  // of LayerNorm
  bool learned_positions = false;
  bool alibi = false;  // no rotary embeddings; the bias is made for `max_seq_len` positions
  int norms_per_layer = 2;
  bool qk_norms = false;
  Bias qkv_bias = Bias::kNever;
  Bias output_bias = Bias::kNever;
  Bias mlp_bias = Bias::kNever;
  Windows windows = Windows::kNone;
  std::int64_t default_window = 0;  // where `sliding_window` is absent; null always means none
  Experts experts = Experts::kNone;
};

// The family of that model_type, nullptr when it is not known here.
const Family* find_family(std::string_view model_type);
// The shapes assumed for model types that are not known here.
const Family& generic_decoder();
const Family& generic_encoder();

}  // namespace ljtrain::ljperf
