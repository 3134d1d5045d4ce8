#include "catalogue/model_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "config_reader.h"
#include "family.h"

namespace ljtrain::ljperf {
namespace {

constexpr double kMostParameters = 1e15;
constexpr std::int64_t kMostHeadDim = 4096;

// The name that the file uses, of a family's own and the common one.
std::string_view key_of(const ConfigReader& reader, std::string_view own, std::string_view common) {
  return !own.empty() && reader.present({own, common}) == common ? common : own;
}

FamilyKeys keys_of(const ConfigReader& reader, const Family& family) {
  const FamilyKeys own = family.keys;
  const FamilyKeys common;
  return {.hidden = key_of(reader, own.hidden, common.hidden),
          .layers = key_of(reader, own.layers, common.layers),
          .heads = key_of(reader, own.heads, common.heads),
          .ffn = key_of(reader, own.ffn, common.ffn),
          .positions = own.common_positions ? key_of(reader, own.positions, common.positions)
                                            : own.positions};
}

// What no reader of one decoder or encoder can make sense of.
void refuse_other_kinds(const ConfigReader& reader, const base::Json& root) {
  if (!root.is_object()) {
    throw base::user_error(
        "{}: is {}, not an object; give a Hugging Face config.json, as in "
        "{{\"model_type\": \"llama\", \"hidden_size\": 4096, ...}}",
        reader.file(), shown(root));
  }
  if (root.contains("text_config") && !root.contains("hidden_size")) {
    throw base::user_error(
        "{} belongs to a multimodal model; only text is trained here: give the content of "
        "`text_config` as a file of its own",
        reader.where("text_config"));
  }
  for (std::string_view key :
       {"is_encoder_decoder", "is_decoder", "add_cross_attention", "use_bidirectional_attention"}) {
    // Harmless on decoders of today, where old files still carry it.
    bool encoder = reader.string_or("model_type", "") == "bert";
    if ((key != "is_decoder" || encoder) && reader.boolean_or(key, false)) {
      throw base::user_error(
          "{} is true; only decoders (causal LM) and encoders (masked LM) are trained here: set it "
          "to false or choose another model",
          reader.where(key));
    }
  }
}

void require_keys(const ConfigReader& reader, const Family& family, const FamilyKeys& keys) {
  std::vector<std::string_view> missing;
  for (std::string_view key :
       {keys.hidden, keys.layers, keys.heads, std::string_view("vocab_size"), keys.ffn}) {
    // GPT-2's MLP is four times as wide as the model unless it says otherwise, MPT's always.
    bool optional = key.empty() || (key == keys.ffn && family.model_type == "gpt2");
    if (!optional && !reader.has(key)) {
      missing.push_back(key);
    }
  }
  if (!missing.empty()) {
    throw base::user_error(
        "{}: model_type `{}` needs the key{} `{}`, absent or null here; take them from the model's "
        "published config.json",
        reader.file(), reader.string_or("model_type", ""), missing.size() == 1 ? "" : "s",
        fmt::join(missing, "`, `"));
  }
}

// transformers types these keys without null, and would fail after the run has started.
void refuse_nulls(const ConfigReader& reader, const Family& family) {
  std::vector<std::string_view> keys{"tie_word_embeddings", "max_position_embeddings"};
  auto add = [&keys](bool condition, std::initializer_list<std::string_view> more) {
    keys.insert(keys.end(), more.begin(), condition ? more.end() : more.begin());
  };
  add(!family.kv_heads_nullable, {"num_key_value_heads"});
  add(family.default_head_dim != 0, {"head_dim"});
  add(family.qkv_bias == Bias::kByKey, {"attention_bias"});
  add(family.mlp_bias == Bias::kByKey, {"mlp_bias"});
  add(family.windows == Windows::kAfterFullLayers || family.windows == Windows::kEveryLayerIfUsed,
      {"use_sliding_window"});
  add(family.windows == Windows::kAfterFullLayers, {"max_window_layers"});
  add(family.experts != Experts::kNone, {"num_experts_per_tok", "num_local_experts", "num_experts",
                                         "moe_intermediate_size", "decoder_sparse_step"});
  for (std::string_view key : keys) {
    if (!reader.present({key}).empty() && !reader.has(key)) {
      throw base::user_error("{} is null; write a value, or remove the key for the default",
                             reader.where(key));
    }
  }
}

bool has_bias(const ConfigReader& reader, Bias bias, std::string_view key) {
  return bias == Bias::kAlways || (bias == Bias::kByKey && reader.boolean_or(key, false));
}

void read_heads(const ConfigReader& reader, const Family& family, const FamilyKeys& keys,
                ModelConfig* config) {
  config->heads = reader.required(keys.heads, 1, Limit::kHeads);
  // An absent key means the family's default, null means as many as heads.
  bool absent = reader.present({"num_key_value_heads"}).empty();
  std::int64_t otherwise =
      absent && family.default_kv_heads != 0 ? family.default_kv_heads : config->heads;
  config->kv_heads = config->heads;
  if (family.head_dim_key) {
    config->kv_heads = reader.integer_or("num_key_value_heads", 1, Limit::kHeads, otherwise);
  }
  if (config->heads % config->kv_heads != 0) {
    throw base::user_error(
        "{} is {}, which is not a multiple of num_key_value_heads ({}): every KV head serves the "
        "same number of heads, so choose a divisor of {}",
        reader.where(keys.heads), config->heads, config->kv_heads, config->heads);
  }
  std::optional<std::int64_t> stated;
  if (family.head_dim_key) {
    stated = reader.integer("head_dim", 1, kMostHeadDim);
    if (!stated && family.default_head_dim != 0) {
      stated = family.default_head_dim;
    }
  }
  if ((!stated || family.heads_divide_hidden) && config->hidden_size % config->heads != 0) {
    throw base::user_error("{} is {}, which does not divide {} ({}); choose a divisor of {}",
                           reader.where(keys.heads), config->heads, keys.hidden,
                           config->hidden_size, config->hidden_size);
  }
  config->head_dim = stated.value_or(config->hidden_size / config->heads);
  if (!family.learned_positions && !family.alibi && config->head_dim % 2 != 0) {
    throw base::user_error(
        "{}: the head size is {} ({}), and rotary embeddings need an even one; change {} or "
        "`head_dim`",
        reader.where(stated ? "head_dim" : keys.heads), config->head_dim,
        stated ? "head_dim" : fmt::format("{} / {}", config->hidden_size, config->heads),
        keys.heads);
  }
}

// The window of each layer from `layer_types`; false when the key is absent.
bool read_layer_types(const ConfigReader& reader, std::int64_t window, ModelConfig* config) {
  auto types = reader.strings("layer_types");
  if (!types) {
    return false;
  }
  if (types->size() != config->layers.size()) {
    throw base::user_error("{} has {} entries, but the model has {} layers; write one a layer",
                           reader.where("layer_types"), types->size(), config->layers.size());
  }
  bool other = false;
  for (std::size_t i = 0; i < types->size(); ++i) {
    const std::string& type = (*types)[i];
    if (type == "sliding_attention") {
      config->layers[i].window = window;
    } else if (type != "full_attention") {
      other = true;
      if (!config->generic) {
        throw base::user_error("{} has the entry {}; write full_attention or sliding_attention",
                               reader.where("layer_types"), shown(base::Json(type)));
      }
    }
  }
  if (other) {
    config->notes.emplace_back(
        "layer_types names attention that is not known here; it is counted as full attention");
  }
  return true;
}

void read_windows(const ConfigReader& reader, const Family& family, ModelConfig* config) {
  bool absent = reader.present({"sliding_window"}).empty();
  std::int64_t window =
      reader.integer_or("sliding_window", 1, Limit::kSize, absent ? family.default_window : 0);
  bool used = reader.boolean_or("use_sliding_window", family.windows == Windows::kGeneric);
  auto each = [&](auto is_sliding) {
    for (std::size_t i = 0; i < config->layers.size(); ++i) {
      config->layers[i].window = is_sliding(static_cast<std::int64_t>(i)) ? window : 0;
    }
  };
  switch (family.windows) {
    case Windows::kNone:
      return;
    case Windows::kEveryLayer:
      return each([](std::int64_t) { return true; });
    case Windows::kEveryLayerIfUsed:
      return each([used](std::int64_t) { return used; });
    case Windows::kAfterFullLayers: {
      constexpr std::int64_t kDefaultFullLayers = 28;
      std::int64_t full =
          reader.integer_or("max_window_layers", 0, Limit::kSize, kDefaultFullLayers);
      if (!read_layer_types(reader, used ? window : 0, config)) {
        each([used, full](std::int64_t i) { return used && i >= full; });
      }
      return;
    }
    case Windows::kAlternating:
      if (!read_layer_types(reader, window, config)) {
        each([](std::int64_t i) { return i % 2 == 0; });
      }
      return;
    case Windows::kAllButEverySixth: {
      std::int64_t pattern = reader.integer_or("sliding_window_pattern", 1, Limit::kLayers, 6);
      if (!read_layer_types(reader, window, config)) {
        each([pattern](std::int64_t i) { return (i + 1) % pattern != 0; });
      }
      return;
    }
    case Windows::kGeneric:
      if (!read_layer_types(reader, window, config)) {
        each([used](std::int64_t) { return used; });
      }
      return;
  }
}

// Keys of an MPT configuration that transformers takes and then ignores.
void note_ignored_keys(const ConfigReader& reader, const base::Json& root, ModelConfig* config) {
  if (reader.integer_or("expansion_ratio", 1, Limit::kSize, 4) != 4) {
    config->notes.push_back(
        fmt::format("expansion_ratio is {}, but transformers always makes MPT's MLP 4 times as "
                    "wide as the model, and so it is counted here",
                    root.at("expansion_ratio").dump()));
  }
  if (!reader.boolean_or("no_bias", true)) {
    config->notes.emplace_back(
        "no_bias is false, but transformers builds MPT without biases, and so it is counted here");
  }
  auto attention = root.find("attn_config");
  if (attention == root.end() || attention->is_null()) {
    return;
  }
  if (!attention->is_object()) {
    throw base::user_error("{} is {}; write an object, as in {{\"alibi\": true}}, or remove it",
                           reader.where("attn_config"), shown(*attention));
  }
  const std::pair<std::string_view, base::Json> kBuilt[] = {
      {"attn_type", "multihead_attention"}, {"qk_ln", false}, {"alibi", true}};
  for (const auto& [key, built] : kBuilt) {
    auto value = attention->find(key);
    if (value != attention->end() && *value != built) {
      config->notes.push_back(fmt::format(
          "attn_config.{} is {}, but transformers builds MPT as with {}, and so it is counted here",
          key, shown(*value), built.dump()));
    }
  }
}

// Which layers have experts: from `decoder_sparse_step` and `mlp_only_layers` (Qwen) and
// `first_k_dense_replace` (DeepSeek).
void place_experts(const ConfigReader& reader, ModelConfig* config) {
  std::int64_t step = reader.integer_or("decoder_sparse_step", 1, Limit::kLayers, 1);
  std::int64_t dense_first = 0;
  if (config->generic) {
    dense_first = reader.integer_or("first_k_dense_replace", 0, Limit::kLayers, 0);
  }
  for (std::int64_t i = 0; i < config->layer_count(); ++i) {
    config->layers[i].mixture_of_experts = i >= dense_first && (i + 1) % step == 0;
  }
  for (std::int64_t layer : reader.integers("mlp_only_layers").value_or(std::vector<int64_t>())) {
    if (layer >= 0 && layer < config->layer_count()) {
      config->layers[layer].mixture_of_experts = false;
    }
  }
}

void read_experts(const ConfigReader& reader, const Family& family, ModelConfig* config) {
  MixtureOfExperts& moe = config->moe;
  std::string_view experts_key;
  std::string_view top_k_key = reader.present({"num_experts_per_tok", "moe_topk", "moe_k"});
  if (top_k_key.empty() || family.experts != Experts::kGeneric) {
    top_k_key = "num_experts_per_tok";
  }
  switch (family.experts) {
    case Experts::kNone:
      return;
    case Experts::kMixtral:
      experts_key = reader.present({"num_local_experts", "num_experts"});
      moe.experts = reader.integer_or(experts_key, 1, Limit::kExperts, 8);
      moe.top_k = reader.integer_or(top_k_key, 1, Limit::kExperts, 2);
      moe.ffn_size = config->ffn_size;
      break;
    case Experts::kQwen3:
      experts_key = reader.present({"num_experts", "num_local_experts"});
      moe.experts = reader.integer_or(experts_key, 0, Limit::kExperts, 128);
      moe.top_k = reader.integer_or(top_k_key, 1, Limit::kExperts, 8);
      moe.ffn_size = reader.integer_or("moe_intermediate_size", 1, Limit::kSize, 768);
      break;
    case Experts::kGeneric:
      experts_key = reader.present(
          {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"});
      moe.experts = reader.integer_or(experts_key, 0, Limit::kExperts, 0);
      moe.top_k = reader.integer_or(top_k_key, 1, Limit::kExperts, 1);
      moe.ffn_size = reader.integer_or("moe_intermediate_size", 1, Limit::kSize, config->ffn_size);
      moe.shared_ffn_size =
          reader.integer_or("n_shared_experts", 0, Limit::kExperts, 0) * moe.ffn_size +
          reader.integer_or("shared_expert_intermediate_size", 0, Limit::kSize, 0);
      break;
  }
  if (moe.experts == 0) {
    moe = {};
    return;
  }
  if (moe.top_k > moe.experts) {
    std::string_view at = reader.has(top_k_key) ? top_k_key : experts_key;
    throw base::user_error(
        "{}: each token goes to {} of {} experts; top-k cannot exceed the number of experts, so "
        "lower num_experts_per_tok or raise the number of experts",
        reader.where(at), moe.top_k, moe.experts);
  }
  place_experts(reader, config);
}

// An upper bound in floating point, before anything is multiplied in 64 bits.
double rough_parameters(const ModelConfig& config) {
  auto hidden = static_cast<double>(config.hidden_size);
  auto query = static_cast<double>(config.heads) * static_cast<double>(config.head_dim);
  auto ffn = static_cast<double>(config.ffn_size);
  auto experts = static_cast<double>(config.moe.experts);
  double per_layer = 4 * (hidden + 1) * (query + 1) + 3 * (hidden + 1) * (ffn + 1) +
                     experts * (3 * hidden * static_cast<double>(config.moe.ffn_size) + hidden) +
                     3 * hidden * static_cast<double>(config.moe.shared_ffn_size) + 8 * hidden;
  double rows = 2 * static_cast<double>(config.vocab_size) +
                static_cast<double>(config.learned_positions + config.type_vocab_size);
  return static_cast<double>(config.layers.size()) * per_layer + (hidden + 1) * (rows + hidden + 4);
}

void check_pad_token(const ConfigReader& reader, const ModelConfig& config) {
  auto pad = reader.integer("pad_token_id", -config.vocab_size, Limit::kSize);
  if (pad && *pad >= config.vocab_size) {
    throw base::user_error(
        "{} is {}, outside the vocabulary of {} tokens; write a number below {} or null",
        reader.where("pad_token_id"), *pad, config.vocab_size, config.vocab_size);
  }
}

const Family& choose_family(const ConfigReader& reader, ModelConfig* config) {
  config->model_type = reader.string_or("model_type", "");
  if (config->model_type.empty()) {
    throw base::user_error(
        "{}: the key `model_type` is missing; add it (\"llama\", say): transformers chooses the "
        "model's class by it",
        reader.file());
  }
  if (const Family* family = find_family(config->model_type)) {
    config->architecture = family->architecture;
    return *family;
  }
  std::vector<std::string> architectures =
      reader.strings("architectures").value_or(std::vector<std::string>());
  config->architecture = architectures.empty() ? config->model_type : architectures.front();
  config->generic = true;
  bool encoder = config->architecture.ends_with("ForMaskedLM");
  config->notes.push_back(fmt::format(
      "model_type {} is not known here and is read as a generic {}: parameters and FLOPs are those "
      "of a {}-shaped model",
      shown(base::Json(config->model_type)), encoder ? "encoder" : "decoder",
      encoder ? "BERT" : "Llama"));
  return encoder ? generic_encoder() : generic_decoder();
}

void read_shape(const ConfigReader& reader, const Family& family, const FamilyKeys& keys,
                ModelConfig* config) {
  config->hidden_size = reader.required(keys.hidden, 1, Limit::kSize);
  config->layers.resize(reader.required(keys.layers, 1, Limit::kLayers));
  config->vocab_size = reader.required("vocab_size", 1, Limit::kSize);
  config->ffn_size = 4 * config->hidden_size;
  if (!keys.ffn.empty()) {
    config->ffn_size = reader.integer_or(keys.ffn, 1, Limit::kSize, config->ffn_size);
  }
  std::int64_t positions = family.learned_positions ? (family.model_type == "gpt2" ? 1024 : 512)
                           : family.alibi           ? 2048
                                                    : 0;
  config->max_positions = reader.integer_or(keys.positions, 1, Limit::kSize, positions);
  config->positions_end = family.learned_positions || family.alibi;
  config->learned_positions = family.learned_positions ? config->max_positions : 0;
  read_heads(reader, family, keys, config);
  config->tied_embeddings = reader.boolean_or("tie_word_embeddings", family.tied_by_default);
  config->gated_mlp = family.gated_mlp;
  config->layer_norm = family.layer_norm;
  config->norm_bias = family.layer_norm && family.norm_bias;
  config->norms_per_layer = family.norms_per_layer;
  config->qk_norms = family.qk_norms;
  config->qkv_bias = has_bias(reader, family.qkv_bias, "attention_bias");
  config->attention_output_bias = has_bias(reader, family.output_bias, "attention_bias");
  config->mlp_bias = has_bias(reader, family.mlp_bias, "mlp_bias");
  if (family.task == Task::kMaskedLm) {
    config->task = Task::kMaskedLm;
    config->embedding_norm = true;
    config->mlm_head = true;
    config->type_vocab_size = reader.integer_or("type_vocab_size", 1, Limit::kSize, 2);
  }
}

}  // namespace

std::string_view task_name(Task task) {
  return task == Task::kCausalLm ? "causal-lm" : "masked-lm";
}

std::int64_t longest_sequence(const ModelConfig& config, std::int64_t seq) {
  return config.positions_end ? std::min(seq, config.max_positions) : seq;
}

void require_sequence(const ModelConfig& config, std::string_view name, std::int64_t seq) {
  if (seq < 1) {
    throw base::user_error("a sequence of {} tokens: use at least 1", seq);
  }
  if (std::int64_t longest = longest_sequence(config, seq); longest < seq) {
    throw base::user_error("a sequence of {} tokens: {} has {} positions; use --seq {} or less",
                           seq, name, longest, longest);
  }
}

ModelConfig read_model_config(const base::JsonDocument& document) {
  ConfigReader reader(document);
  refuse_other_kinds(reader, document.root());
  ModelConfig config;
  const Family& family = choose_family(reader, &config);
  FamilyKeys keys = keys_of(reader, family);
  require_keys(reader, family, keys);
  if (!config.generic) {
    refuse_nulls(reader, family);
  }
  read_shape(reader, family, keys, &config);
  read_windows(reader, family, &config);
  read_experts(reader, family, &config);
  if (config.model_type == "mpt") {
    note_ignored_keys(reader, document.root(), &config);
  }
  check_pad_token(reader, config);
  if (double parameters = rough_parameters(config); parameters > kMostParameters) {
    throw base::user_error(
        "{}: about {:.1e} parameters; no such model exists: check {}, {}, {} and the number of "
        "experts",
        document.name(), parameters, keys.hidden, keys.ffn.empty() ? keys.heads : keys.ffn,
        keys.layers);
  }
  config.json = document.root();
  config.json.erase("_ljtrain");
  return config;
}

}  // namespace ljtrain::ljperf
