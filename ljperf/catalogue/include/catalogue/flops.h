// Floating-point operations of training, from the architecture. One multiply-add is 2 FLOPs; the
// backward pass is twice the forward; norms, activations, softmax and the optimizer are not
// counted.
//
// Four conventions are in use, and a figure means nothing without the name of its convention:
//   megatron    the matrix multiplications that the model needs: projections, MLP or top-k experts
//               with router, output head, and attention over the keys that a query may see (causal:
//               half of the sequence; sliding window W: W - W^2/2S; encoder: all). No look-ups.
//               (Megatron-LM, num_floating_point_operations.)
//   torchtitan  6 (N - E) + 12 L H Q T: parameters without looked-up tables, attention over the
//               whole sequence. (torchtitan, get_dense_model_nparams_and_flops.)
//   palm        6 N + 12 L H Q T. (PaLM, arXiv:2204.02311, appendix B.)
//   6n          6 N. (Kaplan et al., arXiv:2001.08361.)
// N: parameters a token meets (of the routed experts its top-k); E: looked-up tables, but not one
// that is also the output head, whose multiplication is real; L layers, H heads, Q head size,
// T sequence length.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "catalogue/model_config.h"

namespace ljtrain::ljperf {

enum class FlopsConvention : std::uint8_t { kMegatron, kTorchtitan, kPalm, kSixN };

inline constexpr FlopsConvention kFlopsConventions[] = {
    FlopsConvention::kMegatron, FlopsConvention::kTorchtitan, FlopsConvention::kPalm,
    FlopsConvention::kSixN};

// "megatron", "torchtitan", "palm", "6n".
std::string_view flops_convention_name(FlopsConvention convention);
// The convention of that name; throws UserError that lists them.
FlopsConvention parse_flops_convention(std::string_view name);

// How many keys of a sequence of S tokens a query is taken to meet.
enum class AttentionCount : std::uint8_t {
  kVisible,  // those the mask lets it see, on average: S/2 under a causal mask
  kWhole,    // all S, as a kernel that computes masked scores too
};

// Forward FLOPs per token of the matrix multiplications, by layer and for the output head.
struct ForwardFlops {
  std::vector<double> layers;
  double head = 0;

  double total() const;
};

// `seq`: tokens in a sequence, at least 1. The look-up of embeddings costs nothing.
ForwardFlops forward_matmul_flops(const ModelConfig& config, std::int64_t seq,
                                  AttentionCount count);

// Model FLOPs of forward and backward, per token.
double model_flops_per_token(const ModelConfig& config, std::int64_t seq,
                             FlopsConvention convention);

// Model FLOPs of a step over `tokens` tokens (all ranks: ranks * micro-batch * seq *
// accumulation steps; one rank: its share).
double model_flops_per_step(const ModelConfig& config, std::int64_t seq, std::int64_t tokens,
                            FlopsConvention convention);

// What the hardware computes per token: model FLOPs, and one more forward pass of each layer that
// is recomputed in the backward pass (`recomputed[i]`: layer i; as many entries as layers).
double hardware_flops_per_token(const ModelConfig& config, std::int64_t seq,
                                FlopsConvention convention, const std::vector<bool>& recomputed);
// The same with the first `recomputed_layers` layers recomputed.
double hardware_flops_per_token(const ModelConfig& config, std::int64_t seq,
                                FlopsConvention convention, std::int64_t recomputed_layers);

}  // namespace ljtrain::ljperf
