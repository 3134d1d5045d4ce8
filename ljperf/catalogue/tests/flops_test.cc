#include "catalogue/flops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "catalogue/parameters.h"
#include "test_configs.h"

namespace ljtrain::ljperf {
namespace {

double giga(const ModelConfig& config, std::int64_t seq, FlopsConvention convention) {
  return std::round(model_flops_per_token(config, seq, convention) / 1e7) / 100;
}

// The published figures of llama3-8b at 8192 tokens, one for each convention.
TEST(Flops, FourConventionsGiveTheirPublishedNumbers) {
  ModelConfig llama = catalogue_config("llama3-8b");
  EXPECT_DOUBLE_EQ(giga(llama, 8192, FlopsConvention::kMegatron), 51.47);
  EXPECT_DOUBLE_EQ(giga(llama, 8192, FlopsConvention::kTorchtitan), 57.91);
  EXPECT_DOUBLE_EQ(giga(llama, 8192, FlopsConvention::kPalm), 61.07);
  EXPECT_DOUBLE_EQ(giga(llama, 8192, FlopsConvention::kSixN), 48.18);
}

// Megatron-LM's own formula (num_floating_point_operations, without the expert router, which it
// leaves out) agrees for a dense model with grouped queries.
TEST(Flops, MegatronFormula) {
  for (const char* id : {"llama3-8b", "llama3-70b", "qwen3-8b"}) {
    ModelConfig config = catalogue_config(id);
    constexpr double kSeq = 4096;
    auto hidden = static_cast<double>(config.hidden_size);
    auto layers = static_cast<double>(config.layer_count());
    double query_ratio = static_cast<double>(config.query_size()) / hidden;
    double groups = static_cast<double>(config.kv_heads) / static_cast<double>(config.heads);
    double megatron = 12 * layers * hidden * hidden *
                      ((1 + groups + kSeq / hidden / 2) * query_ratio +
                       static_cast<double>(config.ffn_size) / hidden * 1.5 +
                       static_cast<double>(config.vocab_size) / (2 * layers * hidden));
    EXPECT_NEAR(model_flops_per_token(config, 4096, FlopsConvention::kMegatron) / megatron, 1,
                1e-12)
        << id;
  }
}

TEST(Flops, NamesOfConventions) {
  for (FlopsConvention convention : kFlopsConventions) {
    EXPECT_EQ(parse_flops_convention(flops_convention_name(convention)), convention);
  }
  EXPECT_THROW(parse_flops_convention("hfu"), base::UserError);
}

TEST(Flops, WindowsCutAttention) {
  base::Json json = catalogue_json("mistral-7b");
  ModelConfig windowed = read_json(json);
  json["sliding_window"] = nullptr;
  ModelConfig full = read_json(json);
  auto flops = [](const ModelConfig& config, std::int64_t seq) {
    return model_flops_per_token(config, seq, FlopsConvention::kMegatron);
  };
  EXPECT_EQ(flops(windowed, 4096), flops(full, 4096));  // the window covers the sequence
  EXPECT_EQ(flops(windowed, 512), flops(full, 512));
  // 16384 tokens: 8192 keys on average without a window, 4096 - 4096^2 / 32768 = 3584 with.
  double attention = 3 * 4.0 * 32 * 4096;  // forward and backward, both products, all layers
  EXPECT_NEAR(flops(full, 16384) - flops(windowed, 16384), attention * (8192 - 3584), 1);
}

TEST(Flops, EncodersAttendToEverything) {
  ModelConfig bert = catalogue_config("bert-large");
  ForwardFlops visible = forward_matmul_flops(bert, 512, AttentionCount::kVisible);
  EXPECT_EQ(visible.layers, forward_matmul_flops(bert, 512, AttentionCount::kWhole).layers);
  ModelConfig llama = catalogue_config("llama3-8b");
  double whole = forward_matmul_flops(llama, 512, AttentionCount::kWhole).layers[0];
  double causal = forward_matmul_flops(llama, 512, AttentionCount::kVisible).layers[0];
  EXPECT_DOUBLE_EQ(whole - causal, 4.0 * 4096 * 256);
}

TEST(Flops, OnlyActiveExpertsAndTheRouterCount) {
  ModelConfig mixtral = catalogue_config("mixtral-8x7b");
  double layer = forward_matmul_flops(mixtral, 2, AttentionCount::kVisible).layers[0];
  double attention = 2.0 * (4096.0 * (4096 + 2048) + 4096.0 * 4096) + 4.0 * 4096 * 1;
  EXPECT_DOUBLE_EQ(layer, attention + 2.0 * 4096 * 8 + 2 * 2.0 * 3 * 4096 * 14336);
}

TEST(Flops, TiedHeadStillMultiplies) {
  ModelConfig gemma = catalogue_config("gemma-7b");
  ParameterCounts counts = count_parameters(gemma);
  double attention = 12.0 * 28 * 4096 * 512;
  EXPECT_DOUBLE_EQ(model_flops_per_token(gemma, 512, FlopsConvention::kTorchtitan),
                   6.0 * static_cast<double>(counts.total) + attention);
}

TEST(Flops, RecomputedLayersCostOneMoreForward) {
  ModelConfig llama = catalogue_config("llama3-8b");
  for (FlopsConvention convention : kFlopsConventions) {
    double model = model_flops_per_token(llama, 4096, convention);
    EXPECT_EQ(hardware_flops_per_token(llama, 4096, convention, 0), model);
    double all = hardware_flops_per_token(llama, 4096, convention, 32);
    double half = hardware_flops_per_token(llama, 4096, convention, 16);
    EXPECT_NEAR((all - model) / (half - model), 2, 1e-9);
    std::vector<bool> last_16(32);
    std::fill(last_16.begin() + 16, last_16.end(), true);
    EXPECT_NEAR(hardware_flops_per_token(llama, 4096, convention, last_16) / half, 1, 1e-12);
  }
  double layers = 32 * forward_matmul_flops(llama, 4096, AttentionCount::kVisible).layers[0];
  EXPECT_NEAR(hardware_flops_per_token(llama, 4096, FlopsConvention::kMegatron, 32) -
                  model_flops_per_token(llama, 4096, FlopsConvention::kMegatron),
              layers, 1);
}

TEST(Flops, StepIsTokensTimesToken) {
  ModelConfig llama = catalogue_config("llama3-8b");
  EXPECT_DOUBLE_EQ(model_flops_per_step(llama, 512, 1024, FlopsConvention::kPalm),
                   1024 * model_flops_per_token(llama, 512, FlopsConvention::kPalm));
}

}  // namespace
}  // namespace ljtrain::ljperf
