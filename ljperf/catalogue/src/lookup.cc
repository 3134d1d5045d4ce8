#include "catalogue/lookup.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::array<std::string_view, 3> kEngines{"deepspeed", "fsdp", "ddp"};

std::vector<std::string_view> model_names() {
  std::vector<std::string_view> names;
  for (const CatalogueModel& model : catalogue_models()) {
    names.push_back(model.id);
  }
  return names;
}

std::string suggestion(std::string_view name, std::span<const std::string_view> names) {
  std::vector<std::string_view> nearest = nearest_names(name, names);
  if (nearest.empty()) {
    return fmt::format("there are: {}", fmt::join(names, ", "));
  }
  return fmt::format("did you mean {}?", fmt::join(nearest, ", "));
}

const CatalogueModel* find_by_id(std::string_view id) {
  for (const CatalogueModel& model : catalogue_models()) {
    if (model.id == id) {
      return &model;
    }
  }
  return nullptr;
}

}  // namespace

std::span<const std::string_view> engines() { return kEngines; }

std::string_view find_engine(std::string_view name) {
  if (name == "megatron") {
    throw base::user_error(
        "megatron/ is not there yet: Megatron-LM trains only with its CUDA kernels; use "
        "deepspeed/, "
        "fsdp/ or ddp/ (docs/decisions/megatron-engine.md)");
  }
  for (std::string_view engine : kEngines) {
    if (engine == name) {
      return engine;
    }
  }
  throw base::user_error("no engine `{}`: {}", name, suggestion(name, kEngines));
}

ModelReference find_model(std::string_view reference) {
  std::size_t slash = reference.find('/');
  if (slash == std::string_view::npos) {
    bool known = find_by_id(reference) != nullptr;
    std::vector<std::string_view> names = model_names();
    throw base::user_error(
        "model `{}` names no engine: write ENGINE/MODEL, as in deepspeed/{}{}", reference,
        known ? reference : "llama3-8b",
        known ? "" : fmt::format("; for the model, {}", suggestion(reference, names)));
  }
  std::string_view engine = find_engine(reference.substr(0, slash));
  std::string_view id = reference.substr(slash + 1);
  const CatalogueModel* model = find_by_id(id);
  if (model == nullptr) {
    std::vector<std::string_view> names = model_names();
    throw base::user_error("no model `{}`: {} (ljperf models lists all; --config FILE takes any)",
                           id, suggestion(id, names));
  }
  return {.engine = std::string(engine), .model = model};
}

}  // namespace ljtrain::ljperf
