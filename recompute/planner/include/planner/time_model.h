// What operators cost in time, to weigh recomputing them. Offline from the roofline of a device: an
// operator takes as long as its arithmetic or its memory traffic, whichever is longer, each at a
// stated share of the peak (Williams et al., Roofline, CACM 52(4), 2009). A measured step sets the
// scale. Collectives are not counted: where they are exposed, recomputing costs relatively less.
#pragma once

#include <string>
#include <vector>

#include "memory_model/model_shape.h"
#include "memory_model/profile.h"
#include "memory_model/training.h"

namespace ljtrain::recompute {

struct DeviceRates {
  std::string name;
  double flops_per_second = 0;  // dense peak of the type that is multiplied
  double bytes_per_second = 0;  // peak of the memory
  // What large operators of a training step reach of them.
  double flops_efficiency = 0.6;
  double bytes_efficiency = 0.8;
};

class TimeModel {
 public:
  // Throws UserError unless all rates are positive.
  explicit TimeModel(DeviceRates rates);

  // The same, slower or faster by one factor: measured seconds over modelled ones.
  TimeModel scaled(double factor, std::string source) const;

  // One operator.
  double seconds(double flops, double bytes_moved) const;
  // One sentence: rates, efficiencies, and the measurement that set the scale, if one did.
  std::string describe() const;

 private:
  DeviceRates rates_;
  double scale_ = 1;
  std::string source_;
};

// Seconds of the parts of a step under a time model, by the operators that the profile lists.
struct OperatorSeconds {
  std::string name;  // "aten.mm"; all of that name in a layer together
  double seconds = 0;
};

struct StepSeconds {
  std::vector<double> layer_forward;  // one a layer: what recomputing it whole costs, too
  std::vector<std::vector<OperatorSeconds>> layer_operators;  // one list a layer
  double beside = 0;                                          // forward of prologue and epilogue
  double backward_factor = 2;                                 // backward over forward
  double optimizer = 0;  // its traffic of weights, gradients and moments

  // All but what is computed twice, for `micro_batches` micro-batches.
  double without_recompute(double micro_batches) const;
};

// Throws UserError when the profile lacks what the setup needs.
StepSeconds step_seconds(const Profile& profile, const ModelShape& shape,
                         const TrainingSetup& setup, const TimeModel& time);

}  // namespace ljtrain::recompute
