// The configurations that `ljperf sweep` measures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace ljtrain::ljperf {

// Configurations are drawn: families and engines in turn, so that all of them come up, the rest by
// chance from these lists.
struct SweepGrid {
  std::vector<std::string> families{"llama", "mixtral", "gpt2",  "qwen3",
                                    "gemma", "mistral", "qwen2", "phi3"};
  std::vector<std::string> engines{"zero0", "zero3", "zero1", "zero2", "zero3"};  // or ddp, fsdp
  std::vector<std::int64_t> hidden{64, 96, 128};                                  // multiples of 32
  std::vector<std::int64_t> layers{4, 5};
  std::vector<std::int64_t> vocabulary{256, 512};
  std::vector<std::int64_t> seq{128, 192, 256};
  std::vector<std::int64_t> micro_batch{2, 4, 8};
  std::vector<std::int64_t> ranks{1, 2};
  std::vector<std::int64_t> lora{0, 0, 0, 8};  // 0: all parameters are trained
  bool compile = false;
  std::int64_t count = 44;
  std::uint64_t seed = 20261130;
};

// One job of python/ljtrain/sweep.py; `id` names the configuration and is the same in every draw.
struct SweepJob {
  std::string id;
  std::int64_t layers = 0;
  base::OrderedJson json;
};

// Without those drawn twice. Throws UserError naming the option for an unknown family or engine, an
// empty list, and sizes that are out of range.
std::vector<SweepJob> draw_jobs(const SweepGrid& grid);

// The families that the sweep has small models of.
const std::vector<std::string>& sweep_families();

}  // namespace ljtrain::ljperf
