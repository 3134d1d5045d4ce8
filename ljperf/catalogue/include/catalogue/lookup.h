// "deepspeed/llama3-8b": an engine and a model of the catalogue, found by name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// Edits (insert, delete, replace, swap of neighbours) between two names: the optimal string
// alignment distance.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Up to `most` of `names`, nearest first, those that are near enough to be meant: at most half of
// the name's letters changed, or one containing the other.
std::vector<std::string_view> nearest_names(std::string_view name,
                                            std::span<const std::string_view> names,
                                            std::size_t most = 3);

}  // namespace ljtrain::ljperf
