// The models that `ljperf` knows by name: their published config.json files, kept in the program.
// A model is added by adding its file to models/ (docs/models.md).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "catalogue/model_config.h"

namespace ljtrain::ljperf {

struct CatalogueModel {
  std::string_view id;  // llama3-8b
  std::string_view
      config;  // the file: the published config.json and `_ljtrain` {id, title, source}
};

// All models, by id.
std::span<const CatalogueModel> catalogue_models();

// The entry's configuration.
ModelConfig read_catalogue_model(const CatalogueModel& model);
// Its `_ljtrain` object: id, title, and source (the address of the published file).
base::Json catalogue_entry(const CatalogueModel& model);

}  // namespace ljtrain::ljperf
