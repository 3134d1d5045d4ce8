#include "catalogue/memory_estimate.h"

#include <gtest/gtest.h>

#include "catalogue/parameters.h"
#include "test_configs.h"

namespace ljtrain::ljperf {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

TrainingShape shape_of(Sharding sharding, std::int64_t ranks) {
  return {.seq = 512, .micro_batch = 1, .ranks = ranks, .sharding = sharding};
}

double state(const MemoryEstimate& estimate) {
  return estimate.weights + estimate.gradients + estimate.master_weights + estimate.optimizer;
}

// ZeRO's closed forms (arXiv:1910.02054, figure 1) with K = 12 are a lower bound at every stage;
// the estimate adds the fp32 gradients that DeepSpeed's bf16 optimizers make: 4 bytes more.
TEST(MemoryEstimate, HoldsZerosClosedForms) {
  ModelConfig llama = catalogue_config("llama3-8b");
  auto psi = static_cast<double>(count_parameters(llama).total);
  for (std::int64_t ranks : {1, 2, 64}) {
    auto n = static_cast<double>(ranks);
    auto at = [&](Sharding sharding) {
      return state(estimate_memory(llama, shape_of(sharding, ranks))) / psi;
    };
    EXPECT_NEAR(at(Sharding::kZero0), 16 + 4, 1e-9);
    EXPECT_NEAR(at(Sharding::kZero1), 4 + 12 / n + 4 / n, 1e-9);
    EXPECT_NEAR(at(Sharding::kZero2), 2 + 14 / n + 4 / n, 1e-9);
    EXPECT_NEAR(at(Sharding::kZero3), 16 / n + 4 / n, 1e-9);
    EXPECT_NEAR(at(Sharding::kFsdp2), 16 / n, 1e-9);
    EXPECT_NEAR(at(Sharding::kDdp), 18, 1e-9);
  }
}

TEST(MemoryEstimate, TotalIsTheSumOfComponents) {
  MemoryEstimate estimate =
      estimate_memory(catalogue_config("llama3-8b"), shape_of(Sharding::kZero3, 8));
  EXPECT_DOUBLE_EQ(estimate.total(), state(estimate) + estimate.activations + estimate.logits +
                                         estimate.gathered + estimate.framework);
}

TEST(MemoryEstimate, LogitsAndActivationsGrowWithTokens) {
  ModelConfig llama = catalogue_config("llama3-8b");
  TrainingShape shape = shape_of(Sharding::kZero3, 8);
  MemoryEstimate one = estimate_memory(llama, shape);
  shape.micro_batch = 4;
  MemoryEstimate four = estimate_memory(llama, shape);
  EXPECT_DOUBLE_EQ(four.logits, 4 * one.logits);
  EXPECT_DOUBLE_EQ(one.logits, 16.0 * 512 * 128256);
  EXPECT_DOUBLE_EQ(four.activations, 4 * one.activations);
  EXPECT_DOUBLE_EQ(four.optimizer, one.optimizer);
}

// Conservative, not absurd: what people train is allowed, what nobody can is not.
TEST(MemoryEstimate, AllowsWhatFits) {
  auto total = [](const char* id, Sharding sharding, std::int64_t ranks) {
    return estimate_memory(catalogue_config(id), shape_of(sharding, ranks)).total();
  };
  for (Sharding sharding : {Sharding::kDdp, Sharding::kZero0, Sharding::kZero3, Sharding::kFsdp2}) {
    EXPECT_LT(total("bert-large", sharding, 2), 11 * kGiB);
  }
  EXPECT_LT(total("llama3-8b", Sharding::kZero3, 8), 40 * kGiB);
  EXPECT_GT(total("llama3-8b", Sharding::kZero3, 2), 70 * kGiB);
  EXPECT_GT(total("llama3-8b", Sharding::kDdp, 8), 120 * kGiB);
  EXPECT_LT(total("llama3-70b", Sharding::kZero3, 64), 80 * kGiB);
}

TEST(MemoryEstimate, EnginesAndStages) {
  EXPECT_EQ(sharding_of("deepspeed", 2), Sharding::kZero2);
  EXPECT_EQ(sharding_of("fsdp", 0), Sharding::kFsdp2);
  EXPECT_EQ(sharding_of("ddp", 0), Sharding::kDdp);
  EXPECT_THROW(sharding_of("deepspeed", 4), base::UserError);
  EXPECT_THROW(sharding_of("megatron", 0), base::UserError);
}

}  // namespace
}  // namespace ljtrain::ljperf
