// Predicts for the accuracy benchmark: reads one JSON document a line on standard input, writes one
// a line. {"profile": FILE or absent, "shape": {family, sizes {...}, layers [kinds],
// tied_embeddings}, "setup": {engine, ranks, ...}, "recomputed": k,
// "kept_operators": [...] or absent}
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>

#include "base/errors.h"
#include "base/json.h"
#include "memory_model/description.h"
#include "memory_model/prediction.h"

namespace ljtrain::recompute {
namespace {

using base::Json;

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
