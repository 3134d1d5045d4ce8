#include "planner/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

TimeModel h100() {
  return TimeModel({.name = "H100", .flops_per_second = 989.5e12, .bytes_per_second = 3350e9});
}

ModelShape llama(std::size_t layers, std::int64_t hidden = 4096, std::int64_t ffn = 14336,
                 std::int64_t heads = 32) {
  ModelShape shape;
  shape.family = "llama";
  shape.sizes = {.hidden = hidden,
                 .ffn = ffn,
                 .heads = heads,
                 .kv_heads = 8,
                 .head_dim = 128,
                 .vocab = 128256};
  shape.layers.assign(layers, LayerKind::kDense);
  return shape;
}

TrainingSetup training(Engine engine, std::int64_t ranks, std::int64_t seq) {
  TrainingSetup setup;
  setup.engine = engine;
  setup.ranks = ranks;
  setup.seq = seq;
  setup.precision = mixed_precision(engine);
  return setup;
}

// One model and training, with all that a plan needs.
struct Case {
  ModelShape shape;
  Predictor predictor;
  StepSeconds seconds;

  Case(ModelShape of, const TrainingSetup& setup)
      : shape(std::move(of)),
        predictor(*find_profile(shape.family), shape, setup),
        seconds(step_seconds(*find_profile(shape.family), shape, setup, h100())) {}

  Plan plan(double limit, bool selected = true) const {
    PlanRequest request;
    request.limit_bytes = limit;
    request.selected_operators = selected;
    return make_plan(predictor, shape, seconds, request);
  }
  double peak(std::size_t recomputed) const {
    return predictor.peak_bytes(Policy::first_recomputed(shape.layers.size(), recomputed));
  }
};

// The least time of recomputing over every way to keep or recompute whole layers that fits.
double brute_force(const Case& subject, double limit) {
  std::size_t layers = subject.shape.layers.size();
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t bits = 0; bits < (std::size_t{1} << layers); ++bits) {
    Policy policy;
    double seconds = 0;
    for (std::size_t i = 0; i < layers; ++i) {
      bool full = (bits >> i & 1U) != 0;
      policy.layers.push_back(full ? LayerPolicy::kFull : LayerPolicy::kNone);
      seconds += full ? subject.seconds.layer_forward[i] : 0;
    }
    if (seconds < best && subject.predictor.peak_bytes(policy) <= limit) {
      best = seconds;
    }
  }
  return best;
}

class AgainstEveryPolicy : public testing::TestWithParam<Engine> {};

TEST_P(AgainstEveryPolicy, WholeLayersAreChosenOptimally) {
  Case subject(llama(7), training(GetParam(), 4, 32768));
  double least = subject.peak(7);
  double most = subject.peak(0);
  ASSERT_LT(least, 0.9 * most);
  for (double share : {0.02, 0.2, 0.37, 0.5, 0.77, 0.95, 1.01}) {
    double limit = least + share * (most - least);
    Plan plan = subject.plan(limit, false);
    ASSERT_TRUE(plan.fits) << share;
    EXPECT_LE(plan.prediction.peak_bytes, limit);
    EXPECT_NEAR(plan.recompute_seconds, brute_force(subject, limit), 1e-9) << share;
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, AgainstEveryPolicy,
                         testing::Values(Engine::kZero0, Engine::kZero1, Engine::kZero2,
                                         Engine::kZero3, Engine::kFsdp2, Engine::kDdp));

TEST(Planner, SelectingOperatorsIsNeverSlower) {
  Case subject(llama(32), training(Engine::kZero3, 8, 8192));
  bool any_faster = false;
  for (double share : {0.05, 0.3, 0.6, 0.9}) {
    double limit = subject.peak(32) + share * (subject.peak(0) - subject.peak(32));
    Plan whole = subject.plan(limit, false);
    Plan selected = subject.plan(limit);
    EXPECT_LE(selected.prediction.peak_bytes, limit);
    EXPECT_LE(selected.step_seconds, whole.step_seconds + 1e-9);
    EXPECT_LE(selected.least_step_seconds, selected.step_seconds);
    any_faster = any_faster || selected.step_seconds < 0.999 * whole.step_seconds;
  }
  EXPECT_TRUE(any_faster);
}

TEST(Planner, TheLastLayersAreLeftAlone) {
  Case subject(llama(32), training(Engine::kZero3, 8, 8192));
  Plan plan = subject.plan(0.5 * (subject.peak(0) + subject.peak(32)), false);
  ASSERT_TRUE(plan.fits);
  EXPECT_GT(plan.recomputed_layers, 8);
  EXPECT_LT(plan.recomputed_layers, 24);
  EXPECT_TRUE(std::ranges::is_sorted(plan.policy.layers, std::greater<>()));  // full before none
  // One layer less would not fit.
  EXPECT_GT(subject.peak(plan.recomputed_layers - 1), 0.5 * (subject.peak(0) + subject.peak(32)));
}

TEST(Planner, LooseAndHopelessLimits) {
  Case subject(llama(8), training(Engine::kZero3, 8, 4096));
  Plan loose = subject.plan(2 * subject.peak(0));
  EXPECT_EQ(loose.recomputed_layers, 0);
  EXPECT_EQ(loose.recompute_seconds, 0);
  EXPECT_EQ(loose.gap(), 0);
  Plan hopeless = subject.plan(0.1 * kGiB);
  EXPECT_FALSE(hopeless.fits);
  EXPECT_EQ(hopeless.policy.layers.size(), 8);
  EXPECT_LE(hopeless.prediction.peak_bytes, subject.peak(0));
}

TEST(Planner, AFixedNumberOfLayersIsTaken) {
  Case subject(llama(8), training(Engine::kZero2, 4, 1024));
  PlanRequest request;
  request.limit_bytes = 1000 * kGiB;
  request.recompute_layers = 3;
  Plan plan = make_plan(subject.predictor, subject.shape, subject.seconds, request);
  EXPECT_EQ(plan.recomputed_layers, 3);
  EXPECT_EQ(plan.prediction.peak_bytes, subject.peak(3));
  EXPECT_NEAR(plan.recompute_seconds, 3 * subject.seconds.layer_forward[0], 1e-12);
  for (std::int64_t wrong : {-1, 9}) {
    request.recompute_layers = wrong;
    EXPECT_THROW(make_plan(subject.predictor, subject.shape, subject.seconds, request),
                 base::UserError);
  }
}

// What the stack's problem says of a policy is what the memory model predicts for it.
TEST(Planner, TheStackAgreesWithThePrediction) {
  for (Engine engine : {Engine::kZero3, Engine::kZero2, Engine::kFsdp2, Engine::kDdp}) {
    Case subject(llama(12), training(engine, 8, 4096));
    Stack stack = make_stack(subject.predictor, subject.shape, subject.seconds, nullptr);
    for (std::size_t full = 0; full <= 12; ++full) {
      std::vector<std::size_t> choices(12, 1);
      std::fill_n(choices.begin(), full, std::size_t{0});
      double predicted = subject.peak(full);
      EXPECT_NEAR(peak_of(stack, choices) / predicted, 1, 0.015)
          << engine_name(engine) << ", " << full;
    }
  }
}

TEST(TimeModel, RooflineAndScale) {
  TimeModel time({.name = "x",
                  .flops_per_second = 100,
                  .bytes_per_second = 10,
                  .flops_efficiency = 0.5,
                  .bytes_efficiency = 0.5});
  EXPECT_DOUBLE_EQ(time.seconds(100, 1), 2);    // arithmetic
  EXPECT_DOUBLE_EQ(time.seconds(100, 50), 10);  // traffic
  EXPECT_DOUBLE_EQ(time.scaled(3, "a record").seconds(100, 1), 6);
  EXPECT_NE(time.scaled(3, "a record").describe().find("a record"), std::string::npos);
  EXPECT_THROW(TimeModel({.name = "none"}), base::UserError);
}

// A forward pass of llama3-8b over a token is 2 FLOPs a parameter and the attention.
TEST(TimeModel, LayersOfAKnownModel) {
  TrainingSetup setup = training(Engine::kZero3, 8, 8192);
  StepSeconds seconds = step_seconds(*find_profile("llama"), llama(32), setup, h100());
  ASSERT_EQ(seconds.layer_forward.size(), 32);
  double products = 8192 * (2 * 218.1e6 + 2 * 4096.0 * 8192) / (0.6 * 989.5e12);
  EXPECT_GT(seconds.layer_forward[0], products);  // norms and the like take time, too
  EXPECT_LT(seconds.layer_forward[0], 1.8 * products);
  EXPECT_GT(seconds.without_recompute(2),
            2 * seconds.without_recompute(1) - seconds.optimizer - 1e-9);
}

// The bound has slack for a loaded machine; docs/recompute.md has the figure.
TEST(Planner, ALargeModelIsPlannedInTime) {
  Case subject(llama(126, 16384, 53248, 128), training(Engine::kZero3, 512, 8192));
  double limit = 0.5 * (subject.peak(0) + subject.peak(126));
  auto start = std::chrono::steady_clock::now();
  Plan plan = subject.plan(limit);
  std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_TRUE(plan.fits);
  EXPECT_LT(plan.gap(), 0.01);
  EXPECT_LT(elapsed.count(), 1.5);
}

}  // namespace
}  // namespace ljtrain::recompute
