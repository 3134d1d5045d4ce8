// How a model is trained, as one rank sees it. Sizes in elements or bytes as named; defaults are
// those of the engine itself (DeepSpeed 0.19, PyTorch 2.13).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "memory_model/profile.h"

namespace ljtrain::recompute {

enum class Engine : std::uint8_t { kSingle, kDdp, kFsdp2, kZero0, kZero1, kZero2, kZero3 };
std::string_view engine_name(Engine engine);  // "ZeRO-3", "FSDP2", "DDP", ...

// Hosts: tensors are counted by the bytes asked for. CUDA: the caching allocator rounds them, and
// context and collective library take their share.
enum class Platform : std::uint8_t { kHost, kCuda };

// Which collective library moves the bytes; Gloo works on copies of what it is given.
enum class Backend : std::uint8_t { kNccl, kAccl, kGloo };

struct EngineKnobs {
  // DeepSpeed: elements.
  double reduce_bucket_size = 5e8;
  double allgather_bucket_size = 5e8;
  double prefetch_bucket_size = 5e7;
  double persistence_threshold = 1e5;
  double max_live_parameters = 1e9;
  double max_reuse_distance = 1e9;
  double sub_group_size = 1e9;
  std::optional<bool> overlap_comm;  // nullopt: the stage's default (true for 3)
  bool contiguous_gradients = true;
  bool leaf_layers = false;  // decoder layers are leaf modules: gathered whole
  bool offload_optimizer = false;
  bool offload_param = false;
  bool gradient_clipping = true;  // transformers' max_grad_norm is 1 by default
  // DDP.
  double ddp_bucket_bytes = 25.0 * 1024 * 1024;
  double ddp_first_bucket_bytes = 1024.0 * 1024;
  bool gradient_as_bucket_view = false;
  // FSDP2.
  bool reshard_after_forward = true;
  double fsdp_parameter_bytes = 4;  // of the shards kept: fp32 with MixedPrecisionPolicy(bf16)
  double fsdp_reduce_bytes = 4;     // of what is reduced: fp32 in transformers and torchtitan
};

struct TrainingSetup {
  Engine engine = Engine::kZero3;
  std::int64_t ranks = 1;
  std::int64_t micro_batch = 1;
  std::int64_t seq = 0;
  std::int64_t gradient_accumulation = 1;
  Precision precision = Precision::kBf16;
  bool compiled = false;
  bool fused_loss = false;  // head and loss in one, chunk by chunk: no whole logits
  Platform platform = Platform::kCuda;
  Backend backend = Backend::kNccl;
  EngineKnobs knobs;
  // AdamW keeps two fp32 moments; other optimizers their own.
  double optimizer_bytes_per_parameter = 8;
  // Of the optimizer's step: PyTorch's foreach implementation works on lists of temporaries.
  bool fused_optimizer = true;
  // CUDA only. What context and libraries take; nullopt: a common figure, stated.
  std::optional<double> framework_bytes;
  // CUDA only. What the caching allocator reserves beyond what is allocated, as a share of it.
  double fragmentation_fraction = 0.03;
};

// The precision in which an engine trains in bf16, as transformers and accelerate set it up.
Precision mixed_precision(Engine engine);

// The knobs that the Trainer fills in for "auto" under ZeRO-3 (transformers 5.24,
// integrations/deepspeed.py): reduce bucket hidden^2, prefetch 0.9 hidden^2, persistence
// 10 hidden.
EngineKnobs auto_knobs(std::int64_t hidden);

}  // namespace ljtrain::recompute
