#include <algorithm>
#include <utility>

#include "answer.h"
#include "base/errors.h"
#include "deepspeed_settings.h"

namespace ljtrain::ljperf {
namespace {

using recompute::Engine;
using recompute::LayerPolicy;
using recompute::Policy;
using recompute::TrainingSetup;

// Most devices tried for a model that does not fit.
constexpr std::int64_t kMostDevices = 4096;
constexpr std::int64_t kMostMicroBatch = 65'536;
constexpr std::int64_t kLongestSequence = 16'777'216;

// The lowest peak that recomputing reaches, or that of the policy which the options fix.
double smallest_peak(const Subject& subject, const TrainingSetup& setup,
                     const PlanOptions& options) {
  recompute::Predictor predictor = predictor_of(subject, setup);
  std::size_t layers = subject.config.layers.size();
  if (options.recompute) {
    auto fixed = static_cast<std::size_t>(
        std::clamp<std::int64_t>(*options.recompute, 0, subject.config.layer_count()));
    Policy policy = Policy::first_recomputed(layers, fixed);
    if (!options.keep.empty() && fixed > 0) {
      std::ranges::replace(policy.layers, LayerPolicy::kFull, LayerPolicy::kSelected);
      policy.kept_operators.insert(options.keep.begin(), options.keep.end());
    }
    return predictor.peak_bytes(policy);
  }
  return std::min(predictor.peak_bytes(Policy::first_recomputed(layers, layers)),
                  predictor.peak_bytes(Policy::first_recomputed(layers, 0)));
}

// The largest value of at most `most` for which `fits`, 0 when not even 1 does. What fits for a
// value fits for those below it.
template <typename Fits>
std::int64_t largest(std::int64_t most, const Fits& fits) {
  std::int64_t good = 0;
  std::int64_t bad = 1;
  while (bad <= most && fits(bad)) {
    good = bad;
    bad *= 2;
  }
  bad = std::min(bad, most + 1);
  while (bad - good > 1) {
    std::int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

TrainingSetup with_stage(const Subject& subject, int stage) {
  constexpr Engine kStages[] = {Engine::kZero0, Engine::kZero1, Engine::kZero2, Engine::kZero3};
  TrainingSetup setup = subject.setup;
  setup.engine = kStages[stage];
  if (setup.precision == recompute::mixed_precision(subject.setup.engine)) {
    setup.precision = recompute::mixed_precision(setup.engine);
  }
  if (subject.settings_file.empty()) {
    setup.knobs = recommended_knobs(stage, subject.config.hidden_size);
    setup.knobs.offload_optimizer = subject.setup.knobs.offload_optimizer;
    setup.knobs.offload_param = subject.setup.knobs.offload_param && stage == 3;
  }
  return setup;
}

class Alternatives {
 public:
  Alternatives(const Subject& subject, const PlanOptions& options)
      : subject_(subject), request_(request_of(subject, options)) {
    request_.recompute_layers.reset();
  }

  void add_recomputing(std::string change, std::int64_t layers) {
    recompute::PlanRequest request = request_;
    request.kept_operators.reset();
    request.recompute_layers = layers;
    add(std::move(change), subject_.setup, request);
  }
  void add_whole_layers() {
    recompute::PlanRequest request = request_;
    request.kept_operators.reset();
    request.selected_operators = false;
    add("whole layers only", subject_.setup, request);
  }
  void add_setup(std::string change, const TrainingSetup& setup) {
    add(std::move(change), setup, request_);
  }
  bool add_if_fits(std::string change, const TrainingSetup& setup) {
    recompute::Plan plan = plan_of(subject_, setup, request_);
    if (plan.fits) {
      push(std::move(change), plan);
    }
    return plan.fits;
  }
  std::vector<Alternative> take() { return std::move(found_); }

 private:
  void add(std::string change, const TrainingSetup& setup, const recompute::PlanRequest& request) {
    push(std::move(change), plan_of(subject_, setup, request));
  }
  void push(std::string change, const recompute::Plan& plan) {
    found_.push_back({.change = std::move(change),
                      .fits = plan.fits,
                      .peak_bytes = plan.prediction.peak_bytes,
                      .recompute_layers = static_cast<std::int64_t>(plan.recomputed_layers),
                      .step_seconds = plan.step_seconds});
  }

  const Subject& subject_;
  recompute::PlanRequest request_;
  std::vector<Alternative> found_;
};

void add_other_stages(const Subject& subject, Alternatives* alternatives) {
  if (subject.engine != "deepspeed" || subject.setup.ranks == 1) {
    return;
  }
  for (int stage = 0; stage <= 3; ++stage) {
    TrainingSetup setup = with_stage(subject, stage);
    bool offload_lost = subject.setup.knobs.offload_param && stage != 3;
    if (setup.engine != subject.setup.engine && !offload_lost) {
      alternatives->add_setup(fmt::format("--zero {}", stage), setup);
    }
  }
}

// Ways out for a model that does not fit, from what costs nothing to what costs most.
void add_ways_out(const Subject& subject, Alternatives* alternatives) {
  TrainingSetup setup = subject.setup;
  if (setup.micro_batch > 1) {
    setup.micro_batch = 1;
    alternatives->add_if_fits("--micro-batch 1", setup);
    setup = subject.setup;
  }
  bool fusable = subject.config.task == Task::kCausalLm && !setup.fused_loss;
  if (fusable) {
    setup.fused_loss = true;
    alternatives->add_if_fits("--fused-loss", setup);
    setup = subject.setup;
  }
  for (std::int64_t seq = setup.seq / 2; seq >= 512; seq /= 2) {
    setup.seq = seq;
    if (alternatives->add_if_fits(fmt::format("--seq {}", seq), setup)) {
      break;
    }
  }
  setup = subject.setup;
  bool lower_stage = subject.engine == "deepspeed" && setup.engine != Engine::kZero3;
  std::string stage = lower_stage ? "--zero 3 " : "";
  if (subject.engine == "deepspeed") {
    setup = with_stage(subject, 3);
    if (setup.ranks > 1 && lower_stage) {
      alternatives->add_if_fits("--zero 3", setup);
    }
    setup.knobs.offload_optimizer = true;
    if (!alternatives->add_if_fits(stage + "--offload-optimizer", setup)) {
      setup.knobs.offload_param = true;
      alternatives->add_if_fits(stage + "--offload-optimizer --offload-parameters", setup);
    }
  }
  setup = subject.engine == "deepspeed" ? with_stage(subject, 3) : subject.setup;
  for (std::int64_t devices = 2 * setup.ranks; devices <= kMostDevices; devices *= 2) {
    setup.ranks = devices;
    if (alternatives->add_if_fits(fmt::format("{}--devices {}", stage, devices), setup)) {
      break;
    }
  }
}

}  // namespace

std::vector<Alternative> find_alternatives(const Subject& subject, const PlanOptions& options,
                                           const recompute::Plan& plan) {
  Alternatives alternatives(subject, options);
  if (!plan.fits) {
    add_ways_out(subject, &alternatives);
    add_other_stages(subject, &alternatives);
    return alternatives.take();
  }
  alternatives.add_recomputing("recompute every layer", subject.config.layer_count());
  alternatives.add_recomputing("recompute nothing", 0);
  bool selected = std::ranges::count(plan.policy.layers, LayerPolicy::kSelected) > 0;
  if (selected) {
    alternatives.add_whole_layers();
  }
  add_other_stages(subject, &alternatives);
  if (subject.config.task == Task::kCausalLm && !subject.setup.fused_loss) {
    TrainingSetup setup = subject.setup;
    setup.fused_loss = true;
    alternatives.add_setup("--fused-loss", setup);
  }
  return alternatives.take();
}

std::int64_t largest_micro_batch(const Subject& subject, const PlanOptions& options) {
  return largest(kMostMicroBatch, [&](std::int64_t micro_batch) {
    TrainingSetup setup = subject.setup;
    setup.micro_batch = micro_batch;
    return smallest_peak(subject, setup, options) <= subject.limit.bytes;
  });
}

std::int64_t largest_sequence(const Subject& subject, const PlanOptions& options) {
  std::int64_t most = longest_sequence(subject.config, kLongestSequence);
  return largest(most, [&](std::int64_t seq) {
    TrainingSetup setup = subject.setup;
    setup.seq = seq;
    return smallest_peak(subject, setup, options) <= subject.limit.bytes;
  });
}

}  // namespace ljtrain::ljperf
