// A model and its training as JSON, for callers that know them as such: bindings, tools, benchmarks.
//
// {"shape": {"family", "sizes": {SYMBOL: n, ...}, "layers": [KIND, ...], "tied_embeddings", "lora",
//            "flash_attention"},
//  "setup": {"engine", "ranks", "micro_batch", "seq", "gradient_accumulation", "precision",
//            "compiled", "fused_loss", "platform", "backend", "optimizer_bytes_per_parameter",
//            "fused_optimizer", "framework_bytes", "knobs": {...}}}
// Names are those of symbol_names(), layer_kind_name(), engine_name(), precision_name(), and for
// knobs the fields of EngineKnobs. What is absent has its default; on hosts the backend's is gloo.
#pragma once

#include "base/json.h"
#include "memory_model/model_shape.h"
#include "memory_model/training.h"

namespace ljtrain::recompute {

// Both throw UserError naming a key that is unknown, absent but needed, or of another type.
ModelShape read_shape(const base::Json& json);
TrainingSetup read_setup(const base::Json& json);

}  // namespace ljtrain::recompute
