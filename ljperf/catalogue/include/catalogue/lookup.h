// "deepspeed/llama3-8b": an engine and a model of the catalogue, found by name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/names.h"
#include "catalogue/catalogue.h"

namespace ljtrain::ljperf {

// deepspeed, fsdp, ddp.
std::span<const std::string_view> engines();

struct ModelReference {
  std::string engine;
  const CatalogueModel* model = nullptr;
};

// Finds "engine/model". Throws UserError for anything else: with the nearest names for an unknown
// engine or model, and with the reason for megatron/.
ModelReference find_model(std::string_view reference);

// The engine of that name; throws UserError as find_model does.
std::string_view find_engine(std::string_view name);

using base::edit_distance;
using base::nearest_names;

}  // namespace ljtrain::ljperf
