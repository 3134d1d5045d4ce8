// A Hugging Face config.json, read once into typed and checked values. Everything else in the
// catalogue (parameters, FLOPs, proxies, memory) computes from this struct and never looks at the
// JSON again.
//
// Families (`model_type`) read exactly as transformers 5.24 builds them: llama, mistral, mixtral,
// qwen2, qwen3, qwen3_moe, gemma, gemma2, gemma3_text, phi3, gpt2, mpt, bert. Another model_type
// with the common keys is read as a generic decoder (Llama-shaped) or, when its `architectures`
// names a
// ...ForMaskedLM class, a generic encoder (BERT-shaped); `generic` is then true and `notes` says
// so.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace ljtrain::ljperf {

// What the model is trained on: next-token prediction, or filling masked tokens (encoders).
enum class Task : std::uint8_t { kCausalLm, kMaskedLm };

// "causal-lm" or "masked-lm", as the worker's configuration spells it.
std::string_view task_name(Task task);

// What distinguishes one layer from another.
struct LayerSpec {
  std::int64_t window = 0;          // tokens a query may look at, itself included; 0: all of them
  bool mixture_of_experts = false;  // routed experts instead of the dense MLP

  bool operator==(const LayerSpec&) const = default;
};

struct MixtureOfExperts {
  std::int64_t experts = 0;  // 0: the model is dense
  std::int64_t top_k = 0;    // experts that see each token
  std::int64_t ffn_size = 0;
  std::int64_t shared_ffn_size = 0;  // summed over the experts that see every token
};

struct ModelConfig {
  std::string model_type;
  std::string architecture;  // the class that transformers builds, e.g. LlamaForCausalLM
  Task task = Task::kCausalLm;
  bool generic = false;  // not a family known here: counts are those of the shape assumed

  std::int64_t hidden_size = 0;
  std::int64_t ffn_size = 0;  // of the dense MLP
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;      // 0: not stated
  std::int64_t learned_positions = 0;  // rows of a learned position embedding; 0: rotary or ALiBi
  std::int64_t type_vocab_size = 0;    // rows of BERT's segment embedding
  MixtureOfExperts moe;
  std::vector<LayerSpec> layers;  // one a layer, first to last; never empty

  bool positions_end = false;    // no sequence may be longer than max_positions
  bool tied_embeddings = false;  // the output head is the input embedding
  bool gated_mlp = true;         // gate, up and down projections; false: up and down
  bool layer_norm = false;       // LayerNorm; false: RMSNorm, which has a weight only
  bool norm_bias = false;        // LayerNorm has a bias beside its weight
  bool embedding_norm = false;   // BERT: a norm after the embeddings, none after the last layer
  int norms_per_layer = 2;       // Gemma 2 and 3 have 4
  bool qk_norms = false;         // an RMSNorm over head_dim on queries and on keys
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool mlm_head = false;  // BERT's head: a dense layer, a norm, and a bias a token

  base::Json json;                 // the document as given, without `_ljtrain`
  std::vector<std::string> notes;  // what a reader of the results should know

  std::int64_t layer_count() const { return static_cast<std::int64_t>(layers.size()); }
  std::int64_t query_size() const { return heads * head_dim; }
  std::int64_t kv_size() const { return kv_heads * head_dim; }
  bool has_experts() const { return moe.experts > 0; }
};

// Reads and checks. Throws UserError that names file, line and key, says what is wrong and how to
// mend it: missing keys, values of the wrong type or out of range, heads that do not divide,
// top-k above the number of experts, encoder-decoder and multimodal models, and models of more than
// 10^15 parameters (so that counts never overflow 64 bits).
ModelConfig read_model_config(const base::JsonDocument& document);

// The longest sequence the model can take, at most `seq`: learned positions end somewhere, and so
// does the ALiBi bias that transformers makes; rotary positions do not.
std::int64_t longest_sequence(const ModelConfig& config, std::int64_t seq);

// Throws UserError when the model has no positions for a sequence of `seq` tokens, or `seq` is less
// than 1. `name` stands for the model.
void require_sequence(const ModelConfig& config, std::string_view name, std::int64_t seq);

}  // namespace ljtrain::ljperf
