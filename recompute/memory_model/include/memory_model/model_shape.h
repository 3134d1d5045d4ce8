// A model as the memory model sees it: sizes and the kinds of its layers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "memory_model/expression.h"

namespace ljtrain::recompute {

enum class LayerKind : std::uint8_t { kDense, kDenseWindow, kMoe, kMoeWindow };

// "dense", "dense_window", "moe", "moe_window": a profile's segment is "layer:" and this.
std::string_view layer_kind_name(LayerKind kind);

struct ModelShape {
  std::string family;             // model_type, as the profile's
  Sizes sizes;                    // micro_batch and seq come from the TrainingSetup
  std::vector<LayerKind> layers;  // first to last
  bool tied_embeddings = false;   // the output head is the input embedding
  // Of the whole model as the model's description counts them, 0: taken from the profile. Only to
  // hold the profile against: another count adds an assumption that says so.
  std::int64_t parameters = 0;
  // Adapters are in the profile's `lora` variants; sizes.lora_rank is then their rank.
  bool lora = false;
  // Attention is computed in blocks where transformers' own would keep a matrix of seq x seq (MPT).
  bool flash_attention = false;
};

}  // namespace ljtrain::recompute
