// Predicts for the accuracy benchmark: reads one JSON document a line on standard input, writes one
// a line. {"profile": FILE or absent, "shape": {family, sizes {...}, layers [kinds],
// tied_embeddings}, "setup": {engine, ranks, ...}, "recomputed": k,
// "kept_operators": [...] or absent}
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <string>

#include "base/errors.h"
#include "base/json.h"
#include "memory_model/prediction.h"

namespace ljtrain::recompute {
namespace {

using base::Json;

template <typename Enumerator, typename Name>
Enumerator named(const std::string& text, std::initializer_list<Enumerator> values, Name name) {
  for (Enumerator value : values) {
    if (name(value) == text) {
      return value;
    }
  }
  throw base::user_error("unknown name {}", text);
}

ModelShape read_shape(const Json& json) {
  ModelShape shape;
  shape.family = json.at("family").get<std::string>();
  for (std::size_t symbol = 0; symbol < kSymbols; ++symbol) {
    set_size_of_symbol(shape.sizes, symbol,
                       json.at("sizes").value(std::string(symbol_names()[symbol]), 0));
  }
  for (const Json& kind : json.at("layers")) {
    shape.layers.push_back(
        named(kind.get<std::string>(),
              {LayerKind::kDense, LayerKind::kDenseWindow, LayerKind::kMoe, LayerKind::kMoeWindow},
              layer_kind_name));
  }
  shape.tied_embeddings = json.value("tied_embeddings", false);
  shape.lora = json.value("lora", false);
  return shape;
}

TrainingSetup read_setup(const Json& json) {
  TrainingSetup setup;
  setup.engine = named(json.at("engine").get<std::string>(),
                       {Engine::kSingle, Engine::kDdp, Engine::kFsdp2, Engine::kZero0,
                        Engine::kZero1, Engine::kZero2, Engine::kZero3},
                       engine_name);
  setup.ranks = json.at("ranks");
  setup.micro_batch = json.at("micro_batch");
  setup.seq = json.at("seq");
  setup.gradient_accumulation = json.value("gradient_accumulation", 1);
  setup.precision = mixed_precision(setup.engine);
  setup.compiled = json.value("compiled", false);
  setup.platform = Platform::kHost;
  setup.backend = json.value("backend", "gloo") == "gloo" ? Backend::kGloo : Backend::kAccl;
  EngineKnobs& knobs = setup.knobs;
  const std::map<std::string, double EngineKnobs::*> numbers{
      {"reduce_bucket_size", &EngineKnobs::reduce_bucket_size},
      {"allgather_bucket_size", &EngineKnobs::allgather_bucket_size},
      {"prefetch_bucket_size", &EngineKnobs::prefetch_bucket_size},
      {"persistence_threshold", &EngineKnobs::persistence_threshold},
      {"max_live_parameters", &EngineKnobs::max_live_parameters},
      {"max_reuse_distance", &EngineKnobs::max_reuse_distance}};
  const Json none = Json::object();
  for (const auto& [name, value] : json.contains("knobs") ? json["knobs"].items() : none.items()) {
    auto found = numbers.find(name);
    if (found != numbers.end()) {
      knobs.*(found->second) = value;
    } else if (name == "overlap_comm") {
      knobs.overlap_comm = value.get<bool>();
    } else if (name == "leaf_layers") {
      knobs.leaf_layers = value.get<bool>();
    } else {
      throw base::user_error("unknown knob {}", name);
    }
  }
  return setup;
}

Json components(const ComponentBytes& bytes) {
  Json json;
  for (std::size_t i = 0; i < kComponents; ++i) {
    json[std::string(component_name(static_cast<Component>(i)))] = bytes[i];
  }
  return json;
}

Json answer(const Json& question) {
  ModelShape shape = read_shape(question.at("shape"));
  std::optional<Profile> traced;
  if (question.contains("profile")) {
    traced = read_profile(base::JsonDocument::read(question["profile"].get<std::string>()));
  }
  const Profile* profile = traced.has_value() ? &*traced : find_profile(shape.family);
  if (profile == nullptr) {
    throw base::user_error("no profile of {}", shape.family);
  }
  Policy policy =
      Policy::first_recomputed(shape.layers.size(), question.value("recomputed", std::size_t{0}));
  // "kept_operators": the recomputed layers keep these operators' outputs.
  if (question.contains("kept_operators")) {
    for (const Json& name : question["kept_operators"]) {
      policy.kept_operators.insert(name.get<std::string>());
    }
    std::ranges::replace(policy.layers, LayerPolicy::kFull, LayerPolicy::kSelected);
  }
  Predictor predictor(*profile, shape, read_setup(question.at("setup")));
  Prediction prediction = predictor.predict(policy);
  Json timeline = Json::array();
  for (const TimelinePoint& point : prediction.timeline) {
    timeline.push_back({{"phase", phase_name(point.phase)},
                        {"layer", point.layer},
                        {"highest", point.highest},
                        {"bytes", total_bytes(point.bytes)}});
  }
  return {{"peak_bytes", prediction.peak_bytes},
          {"static_bytes", prediction.static_bytes},
          {"parameters", predictor.parameters()},
          {"peak_phase", phase_name(prediction.peak_phase)},
          {"peak_layer", prediction.peak_layer},
          {"peak_components", components(prediction.peak_components)},
          {"static_components", components(prediction.static_components)},
          {"timeline", timeline},
          {"assumptions", prediction.assumptions}};
}

}  // namespace
}  // namespace ljtrain::recompute

int main() {
  try {
    std::string line;
    while (std::getline(std::cin, line)) {
      fmt::print("{}\n", ljtrain::recompute::answer(nlohmann::json::parse(line)).dump());
      std::cout.flush();
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return ljtrain::base::kBadInput;
  }
  return ljtrain::base::kDone;
}
