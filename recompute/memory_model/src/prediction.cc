#include "memory_model/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/units.h"
#include "composition.h"
#include "engine.h"
#include "prepared.h"

namespace ljtrain::recompute {
namespace {

// What the caching allocator reserves beyond what is allocated, and cannot use.
void add_fragmentation(ComponentBytes& bytes, double fraction) {
  double tensors = total_bytes(bytes) - bytes[static_cast<std::size_t>(Component::kFramework)];
  bytes[static_cast<std::size_t>(Component::kFragmentation)] = fraction * tensors;
}

double fragmentation(const TrainingSetup& setup) {
  return setup.platform == Platform::kCuda ? setup.fragmentation_fraction : 0;
}

}  // namespace

Predictor::Predictor(const Profile& profile, const ModelShape& shape, const TrainingSetup& setup)
    : prepared_(std::make_unique<const PreparedModel>(profile, shape, setup)) {}
Predictor::Predictor(Predictor&&) noexcept = default;
Predictor& Predictor::operator=(Predictor&&) noexcept = default;
Predictor::~Predictor() = default;

Prediction Predictor::predict(const Policy& policy) const {
  std::unique_ptr<EngineMemory> engine = make_engine(*prepared_);
  ComponentBytes resting = resting_state(*prepared_, *engine);
  Ledger ledger(resting, true);
  play_step(*prepared_, policy, *engine, ledger);
  double fraction = fragmentation(prepared_->setup());
  Prediction prediction{.peak_phase = ledger.peak_phase(),
                        .peak_layer = ledger.peak_layer(),
                        .peak_components = ledger.peak_components(),
                        .static_components = resting,
                        .timeline = ledger.take_timeline(),
                        .assumptions = prepared_->assumptions()};
  add_fragmentation(prediction.peak_components, fraction);
  add_fragmentation(prediction.static_components, fraction);
  for (TimelinePoint& point : prediction.timeline) {
    add_fragmentation(point.bytes, fraction);
  }
  prediction.peak_bytes = total_bytes(prediction.peak_components);
  prediction.static_bytes = total_bytes(prediction.static_components);
  if (prepared_->setup().platform == Platform::kCuda) {
    double framework = resting[static_cast<std::size_t>(Component::kFramework)];
    prediction.assumptions.push_back(
        fmt::format("device context and collective library take {}, and the caching allocator "
                    "{:.0f} % more than is allocated: unverified against a GPU",
                    base::format_bytes(framework), 100 * fraction));
  }
  return prediction;
}

double Predictor::peak_bytes(const Policy& policy) const {
  std::unique_ptr<EngineMemory> engine = make_engine(*prepared_);
  Ledger ledger(resting_state(*prepared_, *engine), false);
  play_step(*prepared_, policy, *engine, ledger);
  ComponentBytes components = ledger.peak_components();
  add_fragmentation(components, fragmentation(prepared_->setup()));
  return total_bytes(components);
}

std::vector<OperatorCost> Predictor::operators(LayerKind kind) const {
  const Segment& segment = prepared_->traced_layer(kind, false);
  std::vector<OperatorCost> costs;
  auto cost_of = [&costs](const std::string& name) -> OperatorCost& {
    auto found = std::ranges::find(costs, name, &OperatorCost::name);
    return found == costs.end() ? costs.emplace_back(OperatorCost{.name = name}) : *found;
  };
  for (int event : segment.forward) {
    if (event <= 0) {
      continue;
    }
    const Tensor& tensor = segment.tensors[static_cast<std::size_t>(event) - 1];
    OperatorCost& cost = cost_of(tensor.operator_name);
    cost.kept_bytes +=
        tensor.role == Role::kOutput
            ? 0
            : rounded_bytes(tensor.bytes.evaluate(prepared_->sizes()), prepared_->setup().platform);
    cost.saved_by_autograd |= tensor.role == Role::kActivation;
  }
  for (const Work& work : segment.work) {
    OperatorCost& cost = cost_of(work.operator_name);
    cost.flops += work.flops.evaluate(prepared_->sizes());
    cost.bytes_moved += work.bytes_moved.evaluate(prepared_->sizes());
  }
  return costs;
}

double Predictor::layer_flops(LayerKind kind) const {
  double sum = 0;
  for (const Work& work : prepared_->traced_layer(kind, false).work) {
    sum += work.flops.evaluate(prepared_->sizes());
  }
  return sum;
}

double Predictor::layer_bytes_moved(LayerKind kind) const {
  double sum = 0;
  for (const Work& work : prepared_->traced_layer(kind, false).work) {
    sum += work.bytes_moved.evaluate(prepared_->sizes());
  }
  return sum;
}

double Predictor::parameters() const { return prepared_->parameters().elements; }
double Predictor::trainable_parameters() const { return prepared_->parameters().trainable; }

Prediction predict(const Profile& profile, const ModelShape& shape, const TrainingSetup& setup,
                   const Policy& policy) {
  return Predictor(profile, shape, setup).predict(policy);
}

}  // namespace ljtrain::recompute
