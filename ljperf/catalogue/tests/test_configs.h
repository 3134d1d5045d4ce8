// Configurations for the tests: the catalogue's own, with a few keys changed, and small ones.
#pragma once

#include <string>
#include <string_view>

#include "base/errors.h"
#include "base/json.h"
#include "catalogue/catalogue.h"
#include "catalogue/lookup.h"
#include "catalogue/model_config.h"

namespace ljtrain::ljperf {

inline ModelConfig read_text(const std::string& text) {
  return read_model_config(base::JsonDocument::parse(text, "config.json"));
}

inline ModelConfig read_json(const base::Json& json) { return read_text(json.dump(1)); }

// The model of the catalogue with that id.
inline ModelConfig catalogue_config(std::string_view id) {
  return read_catalogue_model(*find_model("ddp/" + std::string(id)).model);
}

inline base::Json catalogue_json(std::string_view id) { return catalogue_config(id).json; }

// Gemma 3 12B's text model: five layers with a window to one without.
inline base::Json gemma3_json() {
  return {{"model_type", "gemma3_text"}, {"hidden_size", 3840},  {"intermediate_size", 15360},
          {"num_attention_heads", 16},   {"head_dim", 256},      {"num_key_value_heads", 8},
          {"num_hidden_layers", 48},     {"vocab_size", 262208}, {"sliding_window", 1024}};
}

// What UserError says when `text` is read, "" when it is accepted.
inline std::string error_of(const std::string& text) {
  try {
    read_text(text);
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace ljtrain::ljperf
