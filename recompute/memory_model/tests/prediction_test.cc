#include "memory_model/prediction.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/errors.h"
#include "prepared.h"
#include "small_profile.h"

namespace ljtrain::recompute {
namespace {

constexpr Engine kEngines[] = {Engine::kSingle, Engine::kDdp,   Engine::kFsdp2, Engine::kZero0,
                               Engine::kZero1,  Engine::kZero2, Engine::kZero3};

ModelShape llama_shape(std::size_t layers) {
  ModelShape shape;
  shape.family = "llama";
  shape.sizes = {
      .hidden = 256, .ffn = 704, .heads = 8, .kv_heads = 4, .head_dim = 32, .vocab = 2000};
  shape.layers.assign(layers, LayerKind::kDense);
  return shape;
}

TrainingSetup llama_setup(Engine engine) {
  TrainingSetup setup = small_setup(engine, engine == Engine::kSingle ? 1 : 2);
  setup.seq = 2048;  // so that activations make the peak
  setup.knobs = auto_knobs(256);
  return setup;
}

double llama_peak(const ModelShape& shape, const TrainingSetup& setup, std::size_t recomputed) {
  return predict(*find_profile("llama"), shape, setup,
                 Policy::first_recomputed(shape.layers.size(), recomputed))
      .peak_bytes;
}

TEST(Prediction, LargerModelsAndBatchesNeedNoLess) {
  for (Engine engine : kEngines) {
    for (std::size_t recomputed : {0, 3}) {
      ModelShape shape = llama_shape(4);
      TrainingSetup setup = llama_setup(engine);
      double base = llama_peak(shape, setup, recomputed);
      auto larger = [&](auto change) {
        ModelShape changed = shape;
        TrainingSetup more = setup;
        change(changed, more);
        return llama_peak(changed, more, recomputed);
      };
      SCOPED_TRACE(engine_name(engine));
      EXPECT_GT(larger([](ModelShape&, TrainingSetup& s) { s.seq += 1; }), base);
      EXPECT_GT(larger([](ModelShape&, TrainingSetup& s) { s.micro_batch += 1; }), base);
      EXPECT_GT(larger([](ModelShape& m, TrainingSetup&) { m.sizes.hidden += 8; }), base);
      EXPECT_GT(larger([](ModelShape& m, TrainingSetup&) { m.sizes.ffn += 8; }), base);
      EXPECT_GT(larger([](ModelShape& m, TrainingSetup&) { m.sizes.vocab += 8; }), base);
      EXPECT_GT(
          larger([](ModelShape& m, TrainingSetup&) { m.layers.push_back(LayerKind::kDense); }),
          base);
    }
  }
}

// Recomputing one layer more saves, or costs at most what that layer works with.
TEST(Prediction, RecomputingCostsAtMostALayersWork) {
  for (Engine engine : kEngines) {
    ModelShape shape = llama_shape(6);
    TrainingSetup setup = llama_setup(engine);
    PreparedModel prepared(*find_profile("llama"), shape, setup);
    double work = 0;
    for (const SizedTensor& tensor : prepared.layer(LayerKind::kDense, true).tensors) {
      work += tensor.bytes;
    }
    double before = llama_peak(shape, setup, 0);
    double none = before;
    for (std::size_t recomputed = 1; recomputed <= 6; ++recomputed) {
      double peak = llama_peak(shape, setup, recomputed);
      EXPECT_LE(peak, before + work) << engine_name(engine) << " " << recomputed;
      before = peak;
    }
    EXPECT_LT(before, none) << engine_name(engine);
  }
}

TEST(Prediction, PeakIsTheTimelinesHighestPoint) {
  for (Engine engine : kEngines) {
    Predictor predictor(*find_profile("llama"), llama_shape(4), llama_setup(engine));
    Policy policy = Policy::first_recomputed(4, 2);
    Prediction prediction = predictor.predict(policy);
    double highest = 0;
    for (const TimelinePoint& point : prediction.timeline) {
      highest = std::max(highest, total_bytes(point.bytes));
    }
    EXPECT_NEAR(prediction.peak_bytes, highest, 1) << engine_name(engine);
    EXPECT_NEAR(predictor.peak_bytes(policy), prediction.peak_bytes, 1);
    EXPECT_NEAR(total_bytes(prediction.peak_components), prediction.peak_bytes, 1);
    EXPECT_GT(prediction.peak_bytes, prediction.static_bytes);
  }
}

TEST(Prediction, SelectedWithNothingKeptIsFull) {
  Predictor predictor(*find_profile("llama"), llama_shape(4), llama_setup(Engine::kZero2));
  Policy full = Policy::first_recomputed(4, 4);
  Policy selected = full;
  selected.layers.assign(4, LayerPolicy::kSelected);
  EXPECT_EQ(predictor.peak_bytes(selected), predictor.peak_bytes(full));
}

TEST(Prediction, SelectedKeepsOutputsOfItsOperators) {
  TrainingSetup setup = small_setup(Engine::kSingle);
  Predictor predictor(small_profile(), small_shape(), setup);
  auto activations_after_forward = [&](const std::set<std::string, std::less<>>& kept) {
    Policy policy = Policy::first_recomputed(4, 0);
    policy.layers.assign(4, LayerPolicy::kSelected);
    policy.kept_operators = kept;
    for (const TimelinePoint& point : predictor.predict(policy).timeline) {
      if (point.phase == Phase::kForward && point.layer == 3 && !point.highest) {
        return bytes_of(point.bytes, Component::kActivations);
      }
    }
    return -1.0;
  };
  double inputs = activations_after_forward({});
  EXPECT_EQ(activations_after_forward({"aten.mm"}), inputs + 4 * 280);
  EXPECT_EQ(activations_after_forward({"aten.mm", "aten.gelu"}), inputs + 4 * (280 + 560));
  EXPECT_EQ(activations_after_forward({"aten.other"}), inputs);
}

TEST(Prediction, SelectedLiesBetweenNoneAndFull) {
  Predictor predictor(*find_profile("llama"), llama_shape(8), llama_setup(Engine::kZero2));
  Policy none = Policy::first_recomputed(8, 0);
  Policy full = Policy::first_recomputed(8, 8);
  Policy selected = full;
  selected.layers.assign(8, LayerPolicy::kSelected);
  selected.kept_operators = {"aten.mm"};
  EXPECT_GT(predictor.peak_bytes(selected), predictor.peak_bytes(full));
  EXPECT_LT(predictor.peak_bytes(selected), predictor.peak_bytes(none));
}

TEST(Prediction, OperatorsSayWhatKeepingThemCosts) {
  Predictor predictor(small_profile(), small_shape(), small_setup(Engine::kSingle));
  std::vector<OperatorCost> costs = predictor.operators(LayerKind::kDense);
  ASSERT_EQ(costs.size(), 3);
  EXPECT_EQ(costs[0].name, "aten.mm");
  EXPECT_EQ(costs[0].kept_bytes, 280);
  EXPECT_EQ(costs[0].flops, 4 * 70 * 20);
  EXPECT_TRUE(costs[0].saved_by_autograd);
  EXPECT_FALSE(costs[1].saved_by_autograd);
  EXPECT_EQ(predictor.layer_flops(LayerKind::kDense), 4 * 70 * 20 + 8 * 70);
  EXPECT_EQ(predictor.layer_bytes_moved(LayerKind::kDense), 2 * 70 + 16 * 70);
}

TEST(Prediction, TiedEmbeddingsAreOneParameter) {
  ModelShape shape = small_shape();
  TrainingSetup setup = small_setup(Engine::kZero2);
  Predictor apart(small_profile(), shape, setup);
  shape.tied_embeddings = true;
  Predictor tied(small_profile(), shape, setup);
  EXPECT_EQ(apart.parameters(), 2210);
  EXPECT_EQ(tied.parameters(), 1910);
  Policy policy = Policy::first_recomputed(4, 0);
  EXPECT_LT(tied.predict(policy).static_bytes, apart.predict(policy).static_bytes);
}

TEST(Prediction, FusedLossHoldsNoWholeLogits) {
  ModelShape shape = llama_shape(2);
  TrainingSetup setup = llama_setup(Engine::kZero2);
  setup.seq = 4096;
  double whole = llama_peak(shape, setup, 2);
  setup.fused_loss = true;
  double fused = llama_peak(shape, setup, 2);
  // fp32 logits of 4096 tokens twice, against those of one chunk.
  EXPECT_LT(fused, whole - 4.0 * (4096 - 256) * 2000);
}

TEST(Prediction, DevicesRoundAndCarryTheirFramework) {
  TrainingSetup setup = small_setup(Engine::kSingle);
  Policy policy = Policy::first_recomputed(4, 0);
  double host = predict(small_profile(), small_shape(), setup, policy).peak_bytes;
  setup.platform = Platform::kCuda;
  Prediction device = predict(small_profile(), small_shape(), setup, policy);
  EXPECT_GT(bytes_of(device.peak_components, Component::kFramework), 1e8);
  EXPECT_GT(bytes_of(device.peak_components, Component::kFragmentation), 0);
  EXPECT_GT(device.peak_bytes, host);
  ASSERT_FALSE(device.assumptions.empty());
  EXPECT_NE(device.assumptions.back().find("unverified against a GPU"), std::string::npos);
  setup.framework_bytes = 7;
  EXPECT_EQ(bytes_of(predict(small_profile(), small_shape(), setup, policy).static_components,
                     Component::kFramework),
            7);
}

TEST(Prediction, StatedParametersThatDisagreeAreSaid) {
  ModelShape shape = small_shape();
  shape.parameters = 2210;
  Policy policy = Policy::first_recomputed(4, 0);
  TrainingSetup setup = small_setup(Engine::kSingle);
  EXPECT_TRUE(predict(small_profile(), shape, setup, policy).assumptions.empty());
  shape.parameters = 3000;
  EXPECT_EQ(predict(small_profile(), shape, setup, policy).assumptions.size(), 1);
}

TEST(Prediction, RefusesWhatItCannotPredict) {
  Profile profile = small_profile();
  auto refuses = [&](const ModelShape& shape, const TrainingSetup& setup, std::size_t layers) {
    try {
      predict(profile, shape, setup, Policy::first_recomputed(layers, 0));
    } catch (const base::UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  TrainingSetup setup = small_setup(Engine::kZero3);
  EXPECT_NE(refuses(small_shape(), setup, 3).find("the policy names 3 layers"), std::string::npos);
  ModelShape moe = small_shape();
  moe.layers.back() = LayerKind::kMoe;
  EXPECT_NE(refuses(moe, setup, 4).find("layer:moe"), std::string::npos);
  setup.precision = Precision::kFp32;
  EXPECT_NE(refuses(small_shape(), setup, 4).find("ljperf trace"), std::string::npos);
  setup = small_setup(Engine::kZero3);
  setup.seq = 0;
  EXPECT_NE(refuses(small_shape(), setup, 4), "");
  setup = small_setup(Engine::kZero3, 0);
  EXPECT_NE(refuses(small_shape(), setup, 4), "");
  ModelShape huge = small_shape();
  huge.sizes.hidden = std::int64_t{1} << 40;
  EXPECT_NE(refuses(huge, small_setup(Engine::kZero3), 4), "");
}

TEST(Prediction, ACompiledProfileThatIsMissingIsSaid) {
  TrainingSetup setup = small_setup(Engine::kZero2);
  setup.compiled = true;
  Prediction prediction =
      predict(small_profile(), small_shape(), setup, Policy::first_recomputed(4, 2));
  EXPECT_EQ(prediction.assumptions.size(), 2);
}

}  // namespace
}  // namespace ljtrain::recompute
