#include "catalogue/catalogue.h"

#include <string>

namespace ljtrain::ljperf {
namespace {

base::JsonDocument document_of(const CatalogueModel& model) {
  return base::JsonDocument::parse(std::string(model.config), std::string(model.id) + ".json");
}

}  // namespace

ModelConfig read_catalogue_model(const CatalogueModel& model) {
  return read_model_config(document_of(model));
}

base::Json catalogue_entry(const CatalogueModel& model) {
  return document_of(model).root().at("_ljtrain");
}

}  // namespace ljtrain::ljperf
