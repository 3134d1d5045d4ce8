#include "planner/time_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
// Gradients of inputs and of weights are a product each; frozen weights need none.
constexpr double kBackward = 2;
constexpr double kBackwardOfFrozen = 1;
// AdamW reads gradient, weight and both moments in fp32 and writes all but the gradient.
constexpr double kOptimizerBytes = 4 * 7;

struct SegmentSeconds {
  double total = 0;
  std::vector<OperatorSeconds> operators;
};

SegmentSeconds seconds_of(const Segment& segment, const Sizes& sizes, const TimeModel& time) {
  SegmentSeconds seconds;
  std::map<std::string_view, std::size_t> places;
  for (const Work& work : segment.work) {
    double one = time.seconds(work.flops.evaluate(sizes), work.bytes_moved.evaluate(sizes));
    seconds.total += one;
    auto [place, is_new] = places.emplace(work.operator_name, seconds.operators.size());
    if (is_new) {
      seconds.operators.push_back({.name = work.operator_name});
    }
    seconds.operators[place->second].seconds += one;
  }
  return seconds;
}

double trainable_elements(const Segment& segment, const Sizes& sizes) {
  double elements = 0;
  for (const ParameterShape& parameter : segment.parameters) {
    elements += parameter.trainable ? parameter.elements.evaluate(sizes) : 0;
  }
  return elements;
}

// What of the training state this rank's optimizer steps through.
double optimizer_share(const TrainingSetup& setup) {
  bool whole = setup.engine == Engine::kSingle || setup.engine == Engine::kDdp ||
               setup.engine == Engine::kZero0;
  return whole ? 1 : 1 / static_cast<double>(std::max<std::int64_t>(1, setup.ranks));
}

const Segment& segment_of(const Variant& variant, const std::string& name,
                          std::string_view family) {
  auto found = variant.segments.find(name);
  if (found == variant.segments.end()) {
    throw base::user_error(
        "the profile of {} has no segment `{}`; trace the model with: ljperf trace --config "
        "config.json",
        family, name);
  }
  return found->second;
}

}  // namespace

TimeModel::TimeModel(DeviceRates rates) : rates_(std::move(rates)) {
  bool positive = rates_.flops_per_second > 0 && rates_.bytes_per_second > 0 &&
                  rates_.flops_efficiency > 0 && rates_.bytes_efficiency > 0;
  if (!positive) {
    throw base::user_error(
        "device {}: the rates of arithmetic and memory must be positive to estimate times",
        rates_.name);
  }
}

TimeModel TimeModel::scaled(double factor, std::string source) const {
  TimeModel model = *this;
  model.scale_ *= factor;
  model.source_ = std::move(source);
  return model;
}

double TimeModel::seconds(double flops, double bytes_moved) const {
  double arithmetic = flops / (rates_.flops_per_second * rates_.flops_efficiency);
  double traffic = bytes_moved / (rates_.bytes_per_second * rates_.bytes_efficiency);
  return scale_ * std::max(arithmetic, traffic);
}

std::string TimeModel::describe() const {
  std::string text =
      fmt::format("roofline of {}: {:.0f}% of {:.4g} TFLOP/s, {:.0f}% of {:.4g} GB/s", rates_.name,
                  100 * rates_.flops_efficiency, rates_.flops_per_second / kTera,
                  100 * rates_.bytes_efficiency, rates_.bytes_per_second / kGiga);
  return source_.empty() ? text : fmt::format("{}, times {:.3g} by {}", text, scale_, source_);
}

double StepSeconds::without_recompute(double micro_batches) const {
  double forward = beside;
  for (double layer : layer_forward) {
    forward += layer;
  }
  return micro_batches * forward * (1 + backward_factor) + optimizer;
}

StepSeconds step_seconds(const Profile& profile, const ModelShape& shape,
                         const TrainingSetup& setup, const TimeModel& time) {
  // Eager forward work is what every mode computes; fusing saves traffic, not products.
  const Variant* variant = profile.find(Mode::kEager, setup.precision, shape.lora);
  if (variant == nullptr) {
    throw base::user_error(
        "the profile of {} has no eager variant in {}{}; trace the model with: ljperf trace "
        "--config config.json",
        shape.family, precision_name(setup.precision), shape.lora ? " with LoRA" : "");
  }
  Sizes sizes = shape.sizes;
  sizes.micro_batch = setup.micro_batch;
  sizes.seq = setup.seq;
  StepSeconds seconds;
  seconds.backward_factor = shape.lora ? kBackwardOfFrozen : kBackward;
  std::map<LayerKind, SegmentSeconds> kinds;
  double trainable = 0;
  for (LayerKind kind : shape.layers) {
    const Segment& segment =
        segment_of(*variant, fmt::format("layer:{}", layer_kind_name(kind)), shape.family);
    auto [found, is_new] = kinds.try_emplace(kind);
    if (is_new) {
      found->second = seconds_of(segment, sizes, time);
    }
    trainable += trainable_elements(segment, sizes);
    seconds.layer_forward.push_back(found->second.total);
    seconds.layer_operators.push_back(found->second.operators);
  }
  for (const char* name : {"prologue", "epilogue"}) {
    const Segment& segment = segment_of(*variant, name, shape.family);
    seconds.beside += seconds_of(segment, sizes, time).total;
    trainable += trainable_elements(segment, sizes);
  }
  seconds.optimizer = time.seconds(0, kOptimizerBytes * trainable * optimizer_share(setup));
  return seconds;
}

}  // namespace ljtrain::recompute
