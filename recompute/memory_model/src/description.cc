#include "memory_model/description.h"

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <variant>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

using base::Json;

template <typename Enumerator, typename Name>
Enumerator named(std::string_view key, const std::string& text,
                 std::initializer_list<Enumerator> values, Name name) {
  for (Enumerator value : values) {
    if (name(value) == text) {
      return value;
    }
  }
  throw base::user_error("{}: there is no {}", key, text);
}

template <typename Value>
Value get(const Json& json, const char* key) {
  try {
    return json.at(key).get<Value>();
  } catch (const Json::exception&) {
    throw base::user_error("the description's {} is absent or of another type", key);
  }
}

template <typename Value>
Value get_or(const Json& json, const char* key, Value otherwise) {
  return json.contains(key) ? get<Value>(json, key) : otherwise;
}

using Knob = std::variant<double EngineKnobs::*, bool EngineKnobs::*>;

const std::map<std::string, Knob, std::less<>>& knobs_by_name() {
  static const std::map<std::string, Knob, std::less<>> kKnobs{
      {"reduce_bucket_size", &EngineKnobs::reduce_bucket_size},
      {"allgather_bucket_size", &EngineKnobs::allgather_bucket_size},
      {"prefetch_bucket_size", &EngineKnobs::prefetch_bucket_size},
      {"persistence_threshold", &EngineKnobs::persistence_threshold},
      {"max_live_parameters", &EngineKnobs::max_live_parameters},
      {"max_reuse_distance", &EngineKnobs::max_reuse_distance},
      {"sub_group_size", &EngineKnobs::sub_group_size},
      {"contiguous_gradients", &EngineKnobs::contiguous_gradients},
      {"leaf_layers", &EngineKnobs::leaf_layers},
      {"offload_optimizer", &EngineKnobs::offload_optimizer},
      {"offload_param", &EngineKnobs::offload_param},
      {"gradient_clipping", &EngineKnobs::gradient_clipping},
      {"ddp_bucket_bytes", &EngineKnobs::ddp_bucket_bytes},
      {"ddp_first_bucket_bytes", &EngineKnobs::ddp_first_bucket_bytes},
      {"gradient_as_bucket_view", &EngineKnobs::gradient_as_bucket_view},
      {"reshard_after_forward", &EngineKnobs::reshard_after_forward},
      {"fsdp_parameter_bytes", &EngineKnobs::fsdp_parameter_bytes},
      {"fsdp_reduce_bytes", &EngineKnobs::fsdp_reduce_bytes}};
  return kKnobs;
}

EngineKnobs read_knobs(const Json& json) {
  EngineKnobs knobs;
  for (const auto& [name, value] : json.items()) {
    if (name == "overlap_comm") {
      knobs.overlap_comm = get<bool>(json, "overlap_comm");
      continue;
    }
    auto found = knobs_by_name().find(name);
    if (found == knobs_by_name().end()) {
      throw base::user_error("knobs: there is no {}", name);
    }
    std::visit(
        [&](auto field) {
          using Value = std::remove_reference_t<decltype(knobs.*field)>;
          knobs.*field = get<Value>(json, name.c_str());
        },
        found->second);
  }
  return knobs;
}

}  // namespace

ModelShape read_shape(const Json& json) {
  ModelShape shape;
  shape.family = get<std::string>(json, "family");
  const auto sizes = get<std::map<std::string, std::int64_t>>(json, "sizes");
  for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) {
    auto found = sizes.find(std::string(symbol_names()[symbol]));
    set_size_of_symbol(shape.sizes, symbol, found == sizes.end() ? 0 : found->second);
  }
  for (const auto& kind : get<std::vector<std::string>>(json, "layers")) {
    shape.layers.push_back(
        named("layers", kind,
              {LayerKind::kDense, LayerKind::kDenseWindow, LayerKind::kMoe, LayerKind::kMoeWindow},
              layer_kind_name));
  }
  shape.tied_embeddings = get_or(json, "tied_embeddings", false);
  shape.lora = get_or(json, "lora", false);
  shape.flash_attention = get_or(json, "flash_attention", false);
  return shape;
}

TrainingSetup read_setup(const Json& json) {
  TrainingSetup setup;
  setup.engine = named("engine", get<std::string>(json, "engine"),
                       {Engine::kSingle, Engine::kDdp, Engine::kFsdp2, Engine::kZero0,
                        Engine::kZero1, Engine::kZero2, Engine::kZero3},
                       engine_name);
  setup.ranks = get<std::int64_t>(json, "ranks");
  setup.micro_batch = get<std::int64_t>(json, "micro_batch");
  setup.seq = get<std::int64_t>(json, "seq");
  setup.gradient_accumulation = get_or<std::int64_t>(json, "gradient_accumulation", 1);
  setup.precision = mixed_precision(setup.engine);
  if (json.contains("precision")) {
    setup.precision =
        named("precision", get<std::string>(json, "precision"),
              {Precision::kBf16, Precision::kAutocast, Precision::kFp32, Precision::kBf16Autocast},
              precision_name);
  }
  setup.compiled = get_or(json, "compiled", false);
  setup.fused_loss = get_or(json, "fused_loss", false);
  bool host = get_or<std::string>(json, "platform", "host") == "host";
  setup.platform = host ? Platform::kHost : Platform::kCuda;
  const auto backend = get_or<std::string>(json, "backend", host ? "gloo" : "nccl");
  setup.backend = backend == "accl"   ? Backend::kAccl
                  : backend == "gloo" ? Backend::kGloo
                                      : Backend::kNccl;
  setup.optimizer_bytes_per_parameter =
      get_or(json, "optimizer_bytes_per_parameter", setup.optimizer_bytes_per_parameter);
  setup.fused_optimizer = get_or(json, "fused_optimizer", setup.fused_optimizer);
  if (json.contains("framework_bytes")) {
    setup.framework_bytes = get<double>(json, "framework_bytes");
  }
  if (json.contains("knobs")) {
    setup.knobs = read_knobs(json["knobs"]);
  }
  return setup;
}

}  // namespace ljtrain::recompute
