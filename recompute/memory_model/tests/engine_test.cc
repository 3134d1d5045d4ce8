// Each engine's state between steps and what moves in a step, against numbers computed by hand for
// the profile in small_profile.h: 2210 parameters in matrices (2200) and a norm (10).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "small_profile.h"

namespace ljtrain::recompute {
namespace {

constexpr double kParameters = 300 + 4 * 400 + 310;
constexpr double kInputs = 2 * 8 * 7;  // token numbers and labels

Prediction play(const TrainingSetup& setup, std::size_t recomputed = 0) {
  return predict(small_profile(), small_shape(), setup, Policy::first_recomputed(4, recomputed));
}

double rise(const Prediction& prediction) {
  return prediction.peak_bytes - prediction.static_bytes;
}

// The highest value of a component over the step.
double most(const Prediction& prediction, Component component) {
  double highest = 0;
  for (const TimelinePoint& point : prediction.timeline) {
    highest = std::max(highest, bytes_of(point.bytes, component));
  }
  return highest;
}

TEST(Engine, StateBetweenSteps) {
  double half = kParameters / 2;
  EXPECT_EQ(play(small_setup(Engine::kSingle)).static_bytes, (4 + 8) * kParameters);
  EXPECT_EQ(play(small_setup(Engine::kDdp, 2)).static_bytes, (4 + 8 + 4) * kParameters);
  EXPECT_EQ(play(small_setup(Engine::kFsdp2, 2)).static_bytes, (4 + 8) * half);
  EXPECT_EQ(play(small_setup(Engine::kZero0, 2)).static_bytes, (2 + 4 + 8) * kParameters);
  // The norm's group of 10 is padded to 12.
  double part = 1100 + 6;
  EXPECT_EQ(play(small_setup(Engine::kZero1, 2)).static_bytes, 2 * kParameters + 12 * part);
  EXPECT_EQ(play(small_setup(Engine::kZero2, 2)).static_bytes, 2 * kParameters + 12 * part);
  // Shards, masters, moments, reduced gradients, and the bucket of 1000 elements.
  EXPECT_EQ(play(small_setup(Engine::kZero3, 2)).static_bytes, (2 + 4 + 8 + 2) * half + 2000);
}

TEST(Engine, OffloadLeavesTheDevice) {
  TrainingSetup setup = small_setup(Engine::kZero3, 2);
  setup.platform = Platform::kCuda;
  setup.framework_bytes = 0;
  setup.fragmentation_fraction = 0;
  setup.knobs.offload_optimizer = true;
  EXPECT_EQ(play(setup).static_bytes, 2 * kParameters / 2 + 2000);
  setup.knobs.offload_param = true;
  EXPECT_EQ(play(setup).static_bytes, 2000);
}

// Forward keeps 4b (280) a layer and 840 of logits; backward holds every gradient (2 bytes each in
// this profile) at the end, when the batch and the last hidden state's gradient are left.
TEST(Engine, OneRankHoldsAllGradients) {
  Prediction prediction = play(small_setup(Engine::kSingle));
  EXPECT_EQ(rise(prediction), 2 * kParameters + kInputs + 140);
  EXPECT_EQ(prediction.peak_phase, Phase::kBackward);
  EXPECT_EQ(prediction.peak_layer, -1);
  EXPECT_EQ(bytes_of(prediction.peak_components, Component::kGradients), 2 * kParameters);
}

TEST(Engine, ActivationsAreFreedAsBackwardPasses) {
  Prediction prediction = play(small_setup(Engine::kSingle));
  double rest = prediction.static_bytes;
  auto end_of = [&](Phase phase, int layer) {
    for (const TimelinePoint& point : prediction.timeline) {
      if (point.phase == phase && point.layer == layer && !point.highest) {
        return total_bytes(point.bytes) - rest;
      }
    }
    return -1.0;
  };
  EXPECT_EQ(end_of(Phase::kForward, -1), kInputs + 140);
  EXPECT_EQ(end_of(Phase::kForward, 3), kInputs + 140 + 4 * 280);
  EXPECT_EQ(end_of(Phase::kForward, 4), kInputs + 140 + 4 * 280 + 840);
  EXPECT_EQ(end_of(Phase::kBackward, 4), kInputs + 140 + 4 * 280 + 2 * 310);
  EXPECT_EQ(end_of(Phase::kBackward, 3), kInputs + 140 + 3 * 280 + 2 * (310 + 400));
  EXPECT_EQ(end_of(Phase::kOptimizer, 4), 0);
}

TEST(Engine, DdpGradientsAsBucketViewsCostNothing) {
  TrainingSetup setup = small_setup(Engine::kDdp, 2);
  double apart = rise(play(setup));
  setup.knobs.gradient_as_bucket_view = true;
  Prediction views = play(setup);
  EXPECT_EQ(apart, 2 * kParameters + kInputs + 140);
  EXPECT_LE(most(views, Component::kGradients), 600);
  EXPECT_LT(rise(views), apart);
}

// bf16 gradients of all parameters, then their fp32 copies beside them.
TEST(Engine, Zero0CopiesGradientsForItsStep) {
  TrainingSetup setup = small_setup(Engine::kZero0);
  EXPECT_EQ(rise(play(setup)), (2 + 4) * kParameters);
  EXPECT_EQ(play(setup).peak_phase, Phase::kOptimizer);
}

// Reduced gradients of whole parameters that touch the first half of 2200 elements: embedding and
// two layers, of the norm none; flattened into 1100, then cast.
TEST(Engine, Zero2StepsOnItsPart) {
  TrainingSetup setup = small_setup(Engine::kZero2, 2);
  setup.seq = 1;
  Prediction prediction = play(setup);
  EXPECT_EQ(prediction.peak_phase, Phase::kOptimizer);
  double own = 300 + 2 * 400 + 10;
  EXPECT_EQ(rise(prediction), 2 * own + 2 * 1100 + 4 * 1100);
}

TEST(Engine, Zero2OverlapTakesTwoBuckets) {
  TrainingSetup setup = small_setup(Engine::kZero2, 2);
  double one = most(play(setup), Component::kCommunication);
  setup.knobs.overlap_comm = true;
  EXPECT_EQ(most(play(setup), Component::kCommunication), one + 2000);
}

TEST(Engine, Zero1KeepsGradientsUntilBackwardEnds) {
  Prediction stage1 = play(small_setup(Engine::kZero1, 2));
  Prediction stage2 = play(small_setup(Engine::kZero2, 2));
  EXPECT_GE(most(stage1, Component::kGradients), 2 * kParameters);
  EXPECT_GT(stage1.peak_bytes, stage2.peak_bytes - 1);
}

TEST(Engine, Zero3ReleasesWhatIsNotUsedSoon) {
  TrainingSetup setup = small_setup(Engine::kZero3, 2);
  setup.knobs.max_reuse_distance = 0;
  Prediction prediction = play(setup);
  double rest = bytes_of(prediction.static_components, Component::kWeights);
  EXPECT_EQ(most(prediction, Component::kWeights), rest + 600);  // the embedding or the head
  setup.knobs.max_reuse_distance = 1e9;  // DeepSpeed's default: a small model stays gathered
  EXPECT_EQ(most(play(setup), Component::kWeights), rest + 2 * kParameters);
}

// Autograd saves views of grouped experts, and views keep what DeepSpeed has released; under
// recompute nothing is saved. Two matrices of 200 elements a layer.
TEST(Engine, Zero3CannotReleaseExpertsThatAutogradSaved) {
  std::string text = small_profile_text();
  for (std::size_t at = 0; (at = text.find("up.weight", at)) != std::string::npos; at += 10) {
    text.replace(at, 9, "experts.u");
  }
  Profile profile = read_profile(base::JsonDocument::parse(text, "experts.json"));
  TrainingSetup setup = small_setup(Engine::kZero3, 2);
  setup.knobs.max_reuse_distance = 0;
  auto held_after_forward = [&](std::size_t recomputed) {
    Prediction prediction =
        predict(profile, small_shape(), setup, Policy::first_recomputed(4, recomputed));
    for (const TimelinePoint& point : prediction.timeline) {
      if (point.phase == Phase::kForward && point.layer == 4 && !point.highest) {
        return bytes_of(point.bytes, Component::kWeights) -
               bytes_of(prediction.static_components, Component::kWeights);
      }
    }
    return -1.0;
  };
  EXPECT_EQ(held_after_forward(0), 4 * 2 * 200);
  EXPECT_EQ(held_after_forward(3), 2 * 200);
  EXPECT_EQ(held_after_forward(4), 0);
}

TEST(Engine, Zero3GathersLeafLayersWhole) {
  TrainingSetup setup = small_setup(Engine::kZero3, 2);
  setup.knobs.max_reuse_distance = 0;
  setup.knobs.leaf_layers = true;
  setup.knobs.reduce_bucket_size = 100;  // every gradient is reduced where it is
  Prediction prediction = play(setup);
  double rest = bytes_of(prediction.static_components, Component::kWeights);
  EXPECT_EQ(most(prediction, Component::kWeights), rest + 800);
  double gradients = bytes_of(prediction.static_components, Component::kGradients);
  // A layer's until it has ended, and the last of the layer before, which nothing has pushed out.
  EXPECT_EQ(most(prediction, Component::kGradients), gradients + 800 + 400);
}

TEST(Engine, Zero3PrefetchesThroughAFlatBuffer) {
  TrainingSetup setup = small_setup(Engine::kZero3, 2);
  double without = most(play(setup), Component::kCommunication);
  setup.knobs.prefetch_bucket_size = 500;
  EXPECT_GT(most(play(setup), Component::kCommunication), without);
}

TEST(Engine, Zero3KeepsSmallParametersWhole) {
  TrainingSetup setup = small_setup(Engine::kZero3, 2);
  double nothing = play(setup).static_bytes;
  setup.knobs.persistence_threshold = 200;  // all layers (200 each matrix) and the norm
  EXPECT_EQ(play(setup).static_bytes, nothing + 2 * (4 * 400 + 10));
}

TEST(Engine, Zero3CastsGradientsForItsStep) {
  TrainingSetup setup = small_setup(Engine::kZero3, 2);
  setup.seq = 1;
  setup.knobs.max_reuse_distance = 0;
  Prediction prediction = play(setup);
  EXPECT_EQ(prediction.peak_phase, Phase::kOptimizer);
  EXPECT_EQ(rise(prediction), (2 + 4) * 1100);
}

// deepspeedai/DeepSpeed#3734, #4305: gathering and buffers can cost more than partitioning saves.
TEST(Engine, Zero3MayPeakAboveZero2) {
  EXPECT_GT(play(small_setup(Engine::kZero3, 2)).peak_bytes,
            play(small_setup(Engine::kZero2, 2)).peak_bytes);
  TrainingSetup stage2 = small_setup(Engine::kZero2, 16);
  TrainingSetup stage3 = small_setup(Engine::kZero3, 16);
  stage2.knobs.reduce_bucket_size = stage3.knobs.reduce_bucket_size = 100;
  stage3.knobs.max_reuse_distance = 0;
  EXPECT_LT(play(stage3).peak_bytes, play(stage2).peak_bytes);
}

// In backward of a layer: it is whole (800), the next is gathered (800), its gradients (800) are
// reduced through fp32 (1600).
TEST(Engine, Fsdp2GathersTheNextLayerToo) {
  Prediction prediction = play(small_setup(Engine::kFsdp2, 2));
  double rest = bytes_of(prediction.static_components, Component::kWeights);
  double head = 2 * 310;
  EXPECT_EQ(most(prediction, Component::kWeights), rest + std::max(head, 800.0));
  EXPECT_GE(most(prediction, Component::kCommunication), 1600);
  // Reduced: fp32 shards of all gradients.
  for (const TimelinePoint& point : prediction.timeline) {
    if (point.phase == Phase::kReduction && !point.highest) {
      EXPECT_EQ(bytes_of(point.bytes, Component::kGradients), 4 * kParameters / 2);
      EXPECT_EQ(bytes_of(point.bytes, Component::kCommunication), 0);
    }
  }
}

TEST(Engine, AccumulationKeepsGradientsBetweenMicroSteps) {
  for (Engine engine : {Engine::kSingle, Engine::kDdp, Engine::kFsdp2, Engine::kZero0,
                        Engine::kZero1, Engine::kZero2, Engine::kZero3}) {
    TrainingSetup setup = small_setup(engine, engine == Engine::kSingle ? 1 : 2);
    double once = play(setup).peak_bytes;
    setup.gradient_accumulation = 2;
    double twice = play(setup).peak_bytes;
    EXPECT_GE(twice, once) << engine_name(engine);
    setup.gradient_accumulation = 8;  // only the batches of the other micro-steps are added
    EXPECT_EQ(play(setup).peak_bytes - twice,
              rise(play(setup)) - (twice - play(setup).static_bytes))
        << engine_name(engine);
  }
}

TEST(Engine, GlooWorksOnCopies) {
  for (Engine engine : {Engine::kFsdp2, Engine::kZero3}) {
    TrainingSetup setup = small_setup(engine, 2);
    double in_place = most(play(setup), Component::kCommunication);
    setup.backend = Backend::kGloo;
    EXPECT_GT(most(play(setup), Component::kCommunication), in_place) << engine_name(engine);
  }
}

TEST(Engine, EveryStepEndsWhereItBegan) {
  for (Engine engine : {Engine::kSingle, Engine::kDdp, Engine::kFsdp2, Engine::kZero0,
                        Engine::kZero1, Engine::kZero2, Engine::kZero3}) {
    for (std::int64_t ranks : {1, 2, 3}) {
      for (std::int64_t accumulation : {1, 2}) {
        TrainingSetup setup = small_setup(engine, ranks);
        setup.gradient_accumulation = accumulation;
        setup.knobs.prefetch_bucket_size = 300;
        Prediction prediction = play(setup, 2);
        const ComponentBytes& end = prediction.timeline.back().bytes;
        for (std::size_t i = 0; i < kComponents; ++i) {
          EXPECT_NEAR(end[i], prediction.static_components[i], 1e-6)
              << engine_name(engine) << " " << ranks << " "
              << component_name(static_cast<Component>(i));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ljtrain::recompute
