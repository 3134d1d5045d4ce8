// A hand-made profile and model whose memory can be computed by hand.
#pragma once

#include <string>

#include "base/json.h"
#include "memory_model/prediction.h"

namespace ljtrain::recompute {

// Bytes, with b = micro_batch * seq * hidden: a layer keeps 4b and works in 8b for a moment; head
// and loss keep 4 * micro_batch * seq * vocab. Under recompute a layer keeps its input alone.
inline std::string small_profile_text() {
  const std::string prologue = R"({
    "parameters": [["embed_tokens.weight", "1*vocab*hidden"]],
    "tensors": [["2*micro_batch*seq*hidden", "aten.take", "output"],
                ["2*vocab*hidden", "aten.embedding_dense_backward", "weight_gradient:0"],
                ["2*micro_batch*seq*hidden", "aten.add", "output_gradient"]],
    "forward": [1], "backward": [2, -3]})";
  const std::string layer = R"({
    "parameters": [["up.weight", "1*hidden*ffn"], ["down.weight", "1*ffn*hidden"]],
    "uses": [[0, 0], [1, 1]],
    "tensors": [["2*micro_batch*seq*hidden", "aten.add", "input"],
                ["4*micro_batch*seq*hidden", "aten.mm", "activation"],
                ["8*micro_batch*seq*hidden", "aten.gelu", "temporary"],
                ["2*micro_batch*seq*hidden", "aten.add", "output"],
                ["2*micro_batch*seq*hidden", "aten.add", "output_gradient"],
                ["2*ffn*hidden", "aten.mm", "weight_gradient:1"],
                ["2*hidden*ffn", "aten.mm", "weight_gradient:0"],
                ["2*micro_batch*seq*hidden", "aten.mm", "input_gradient"]],
    "forward": [2, 3, -3, 4, -1],
    "backward": [6, -2, 7, 8, -5],
    "work": [["aten.mm", "4*micro_batch*seq*hidden*ffn", "2*micro_batch*seq*hidden"],
             ["aten.gelu", "8*micro_batch*seq*hidden", "16*micro_batch*seq*hidden"]]})";
  const std::string recomputed = R"({
    "parameters": [["up.weight", "1*hidden*ffn"], ["down.weight", "1*ffn*hidden"]],
    "uses": [[0, 0], [1, 2]], "recompute_events": 3,
    "tensors": [["2*micro_batch*seq*hidden", "aten.add", "input"],
                ["4*micro_batch*seq*hidden", "aten.mm", "temporary"],
                ["8*micro_batch*seq*hidden", "aten.gelu", "temporary"],
                ["2*micro_batch*seq*hidden", "aten.add", "output"],
                ["2*micro_batch*seq*hidden", "aten.add", "output_gradient"],
                ["4*micro_batch*seq*hidden", "aten.mm", "temporary"],
                ["8*micro_batch*seq*hidden", "aten.gelu", "temporary"],
                ["2*ffn*hidden", "aten.mm", "weight_gradient:1"],
                ["2*hidden*ffn", "aten.mm", "weight_gradient:0"],
                ["2*micro_batch*seq*hidden", "aten.mm", "input_gradient"]],
    "forward": [2, 3, -2, -3, 4],
    "backward": [6, 7, -7, 8, -6, 9, -1, 10, -5]})";
  const std::string epilogue = R"({
    "parameters": [["norm.weight", "1*hidden"], ["lm_head.weight", "1*vocab*hidden"]],
    "uses": [[0, 0], [1, 0]],
    "tensors": [["2*micro_batch*seq*hidden", "aten.add", "input"],
                ["4*micro_batch*seq*vocab", "aten._log_softmax", "activation"],
                ["4*micro_batch*seq*vocab", "aten.nll_loss_backward", "temporary"],
                ["2*vocab*hidden", "aten.mm", "weight_gradient:1"],
                ["2*hidden", "aten.sum", "weight_gradient:0"],
                ["2*micro_batch*seq*hidden", "aten.mm", "input_gradient"]],
    "forward": [2], "backward": [3, -2, 4, -3, -1, 5, 6]})";
  auto variant = [&](const std::string& mode, const std::string& precision,
                     const std::string& one_layer) {
    return R"({"mode": ")" + mode + R"(", "precision": ")" + precision +
           R"(", "lora": false, "segments": {"prologue": )" + prologue + R"(, "layer:dense": )" +
           one_layer + R"(, "epilogue": )" + epilogue + "}}";
  };
  std::string variants;
  for (const char* precision : {"bf16", "autocast", "bf16_autocast"}) {
    variants += (variants.empty() ? "" : ", ") + variant("eager", precision, layer) + ", " +
                variant("checkpointed", precision, recomputed);
  }
  return R"({"schema_version": 1, "family": "small", "traced_with": {"torch": "2.13.0"},
    "variants": [)" +
         variants + "]}";
}

inline Profile small_profile() {
  return read_profile(base::JsonDocument::parse(small_profile_text(), "small.json"));
}

// hidden 10, ffn 20, vocabulary 30: 300 + layers * 400 + 310 parameters.
inline ModelShape small_shape(std::size_t layers = 4) {
  ModelShape shape;
  shape.family = "small";
  shape.sizes.hidden = 10;
  shape.sizes.ffn = 20;
  shape.sizes.vocab = 30;
  shape.layers.assign(layers, LayerKind::kDense);
  return shape;
}

// 7 tokens on a host, in place collectives, one rank unless said otherwise.
inline TrainingSetup small_setup(Engine engine, std::int64_t ranks = 1) {
  TrainingSetup setup;
  setup.engine = engine;
  setup.ranks = ranks;
  setup.seq = 7;
  setup.precision = mixed_precision(engine);
  setup.platform = Platform::kHost;
  setup.backend = Backend::kAccl;
  setup.knobs.reduce_bucket_size = 1000;
  setup.knobs.allgather_bucket_size = 1000;
  setup.knobs.prefetch_bucket_size = 0;
  setup.knobs.persistence_threshold = 0;
  return setup;
}

inline double bytes_of(const ComponentBytes& bytes, Component component) {
  return bytes[static_cast<std::size_t>(component)];
}

}  // namespace ljtrain::recompute
