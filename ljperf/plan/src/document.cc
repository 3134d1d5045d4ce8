#include <algorithm>
#include <string>

#include "answer.h"

namespace ljtrain::ljperf {
namespace {

using base::OrderedJson;

constexpr int kSchemaVersion = 1;

std::int64_t whole(double bytes) { return static_cast<std::int64_t>(bytes); }

OrderedJson breakdown(const recompute::ComponentBytes& bytes) {
  OrderedJson json;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    json[std::string(recompute::component_name(static_cast<recompute::Component>(i)))] =
        whole(bytes[i]);
  }
  return json;
}

OrderedJson seconds_or_null(const Subject& subject, double seconds) {
  // Without the device's own rates times only compare.
  return subject.device_known ? OrderedJson(seconds) : OrderedJson(nullptr);
}

OrderedJson alternatives_json(const Subject& subject, const Answer& answer) {
  OrderedJson list = OrderedJson::array();
  for (const Alternative& alternative : answer.alternatives) {
    list.push_back({{"change", alternative.change},
                    {"fits", alternative.fits},
                    {"predicted_peak_bytes", whole(alternative.peak_bytes)},
                    {"recompute_layers", alternative.recompute_layers},
                    {"step_time_estimate_s", seconds_or_null(subject, alternative.step_seconds)},
                    {"step_time_ratio", answer.plan.step_seconds > 0
                                            ? alternative.step_seconds / answer.plan.step_seconds
                                            : 1.0}});
  }
  return list;
}

// The most that one layer needs beside what is saved, at any moment: what the caching allocator
// keeps from it cannot serve larger requests.
double largest_working_set(const recompute::Prediction& prediction) {
  double most = 0;
  for (const recompute::TimelinePoint& point : prediction.timeline) {
    most = std::max(most, point.bytes[static_cast<std::size_t>(recompute::Component::kWorkingSet)]);
  }
  return most;
}

OrderedJson peak_json(const recompute::Prediction& prediction) {
  return {{"phase", recompute::phase_name(prediction.peak_phase)},
          {"layer", prediction.peak_layer}};
}

}  // namespace

OrderedJson to_json(const Subject& subject, const Answer& answer) {
  const recompute::Plan& plan = answer.plan;
  OrderedJson policy = OrderedJson::array();
  for (recompute::LayerPolicy layer : plan.policy.layers) {
    policy.push_back(recompute::layer_policy_name(layer));
  }
  SettingsToPaste settings = settings_to_paste(subject, plan);
  const recompute::TrainingSetup& setup = subject.setup;
  return {{"schema_version", kSchemaVersion},
          {"model", subject.name},
          {"model_type", subject.config.model_type},
          {"parameters", whole(answer.parameters)},
          {"trainable_parameters", whole(answer.trainable_parameters)},
          {"engine", recompute::engine_name(setup.engine)},
          {"devices", setup.ranks},
          {"device", subject.device},
          {"seq", setup.seq},
          {"micro_batch", setup.micro_batch},
          {"gradient_accumulation", setup.gradient_accumulation},
          {"precision", recompute::precision_name(setup.precision)},
          {"compiled", setup.compiled},
          {"layers", subject.config.layer_count()},
          {"recompute_layers", plan.recomputed_layers},
          {"policy", policy},
          {"kept_operators", plan.policy.kept_operators},
          {"fits", plan.fits},
          {"limit_bytes", whole(subject.limit.bytes)},
          {"limit_source", subject.limit.source},
          {"predicted_peak_bytes", whole(plan.prediction.peak_bytes)},
          {"static_bytes", whole(plan.prediction.static_bytes)},
          {"peak", peak_json(plan.prediction)},
          {"breakdown_bytes", breakdown(plan.prediction.peak_components)},
          {"working_set_peak_bytes", whole(largest_working_set(plan.prediction))},
          {"max_micro_batch", answer.max_micro_batch},
          {"max_seq", answer.max_seq},
          {"step_time_estimate_s", seconds_or_null(subject, plan.step_seconds)},
          {"recompute_time_share",
           plan.step_seconds > 0 ? plan.recompute_seconds / plan.step_seconds : 0.0},
          {"time_model", subject.time.describe()},
          {"optimality_gap", plan.gap()},
          {"alternatives", alternatives_json(subject, answer)},
          {"shortfall",
           answer.shortfall.empty() ? OrderedJson(nullptr) : OrderedJson(answer.shortfall)},
          {"warnings", answer.warnings},
          {"assumptions", plan.prediction.assumptions},
          {"settings",
           {{"deepspeed", settings.deepspeed},
            {"training_arguments", settings.training_arguments},
            {"python", settings.python}}}};
}

}  // namespace ljtrain::ljperf
