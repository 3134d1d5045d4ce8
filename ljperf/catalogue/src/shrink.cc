#include "shrink.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "family.h"

namespace ljtrain::ljperf {
namespace {

using base::Json;

// The name of a size in this file: the common one, or the family's own where the file has that.
std::string stored_name(const Json& json, const ModelConfig& config,
                        std::string_view FamilyKeys::* key) {
  const Family* family = find_family(config.model_type);
  std::string common(FamilyKeys().*key);
  return family == nullptr || json.contains(common) ? common : std::string(family->keys.*key);
}

// Divides what is there and not null.
void divide(Json* json, std::string_view key, std::int64_t divisor) {
  auto found = json->find(key);
  if (found != json->end() && found->is_number_integer()) {
    *found = found->get<std::int64_t>() / divisor;
  }
}

void divide_sizes(const ModelConfig& config, std::int64_t divisor, Json* json) {
  (*json)[stored_name(*json, config, &FamilyKeys::hidden)] = config.hidden_size / divisor;
  (*json)[stored_name(*json, config, &FamilyKeys::heads)] = config.heads / divisor;
  (*json)["vocab_size"] = (config.vocab_size + divisor - 1) / divisor;
  for (std::string_view key : {"intermediate_size", "n_inner"}) {
    divide(json, key, divisor);
  }
  // Absent keys of these have a default of their own, which would not shrink.
  const Family* family = find_family(config.model_type);
  bool kv_default = family != nullptr && family->default_kv_heads != 0;
  if (kv_default ||
      (json->contains("num_key_value_heads") && !(*json)["num_key_value_heads"].is_null())) {
    (*json)["num_key_value_heads"] = config.kv_heads / divisor;
  }
  if (config.has_experts() && config.model_type != "mixtral") {
    (*json)["moe_intermediate_size"] = config.moe.ffn_size / divisor;
    divide(json, "shared_expert_intermediate_size", divisor);
  }
}

// Token ids that the smaller vocabulary does not have become null (several of them: are left out).
void drop_absent_tokens(std::int64_t vocab_size, Json* json) {
  auto absent = [vocab_size](const Json& id) {
    return id.is_number_integer() && id.get<std::int64_t>() >= vocab_size;
  };
  for (auto& [key, value] : json->items()) {
    if (!key.ends_with("_token_id")) {
      continue;
    }
    if (value.is_array()) {
      auto& ids = value.get_ref<Json::array_t&>();
      std::erase_if(ids, absent);
    }
    if (absent(value) || (value.is_array() && value.empty())) {
      value = nullptr;
    }
  }
}

// Lists with one entry a layer keep the entries of the chosen layers.
void choose_in_lists(const std::vector<std::int64_t>& chosen, std::size_t of_layers, Json* json) {
  for (auto& [key, value] : json->items()) {
    if (of_layers < 2 || !value.is_array() || value.size() != of_layers ||
        key == "mlp_only_layers") {
      continue;
    }
    Json kept = Json::array();
    for (std::int64_t layer : chosen) {
      kept.push_back(value[static_cast<std::size_t>(layer)]);
    }
    value = std::move(kept);
  }
}

// Keys that place layers by number. A periodic pattern keeps its rule (only numbers past the end
// go); layers taken from all over the model are named one by one instead.
void place_layers(const ModelConfig& config, const std::vector<std::int64_t>& chosen, bool periodic,
                  Json* json) {
  auto count = static_cast<std::int64_t>(chosen.size());
  Json types = Json::array();
  Json dense = Json::array();
  std::int64_t dense_first = 0;
  bool windows_differ = false;
  for (std::int64_t i = 0; i < count; ++i) {
    const LayerSpec& layer = config.layers[static_cast<std::size_t>(chosen[i])];
    windows_differ = windows_differ || layer.window != config.layers.front().window;
    types.push_back(layer.window > 0 ? "sliding_attention" : "full_attention");
    if (!layer.mixture_of_experts) {
      dense.push_back(i);
      dense_first += dense_first == i ? 1 : 0;
    }
  }
  if (!periodic) {
    if (windows_differ) {
      (*json)["layer_types"] = types;
    }
    if (config.has_experts()) {
      (*json)["mlp_only_layers"] = dense;
      (*json)["decoder_sparse_step"] = 1;
    }
  } else if (config.has_experts() && json->contains("mlp_only_layers") &&
             (*json)["mlp_only_layers"].is_array()) {
    Json kept = Json::array();
    for (const Json& layer : (*json)["mlp_only_layers"]) {
      if (layer.get<std::int64_t>() < count) {
        kept.push_back(layer);
      }
    }
    (*json)["mlp_only_layers"] = kept;
  }
  if (config.has_experts() && json->contains("first_k_dense_replace")) {
    (*json)["first_k_dense_replace"] = dense_first;
  }
  auto full = json->find("max_window_layers");
  if (full != json->end() && full->is_number_integer()) {
    std::int64_t layers = config.layer_count();
    // Families without windows never check the value.
    std::int64_t before = std::clamp<std::int64_t>(full->get<std::int64_t>(), 0, layers);
    *full = (before * count + layers / 2) / layers;
  }
}

}  // namespace

ModelConfig shrink(const ModelConfig& config, std::int64_t divisor,
                   const std::vector<std::int64_t>& chosen, bool periodic) {
  Json json = config.json;
  divide_sizes(config, divisor, &json);
  choose_in_lists(chosen, config.layers.size(), &json);
  place_layers(config, chosen, periodic, &json);
  json[stored_name(json, config, &FamilyKeys::layers)] = chosen.size();
  drop_absent_tokens(json["vocab_size"].get<std::int64_t>(), &json);
  return read_model_config(base::JsonDocument::parse(json.dump(2), "proxy config.json"));
}

}  // namespace ljtrain::ljperf
