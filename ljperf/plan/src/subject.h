// The model, the training and the device that a plan is for, as the memory model takes them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "catalogue/model_config.h"
#include "memory_model/prediction.h"
#include "plan/options.h"
#include "planner/planner.h"

namespace ljtrain::ljperf {

// The shape of a configuration at sequences of `seq` tokens. `lora_rank` 0: no adapters.
recompute::ModelShape shape_of(const ModelConfig& config, std::int64_t seq, std::int64_t lora_rank);

struct Limit {
  double bytes = 0;
  std::string source;  // "80 GiB less 5 %"
};

struct Subject {
  std::string name;  // of the model
  ModelConfig config;
  recompute::Profile profile;
  recompute::TrainingSetup setup;
  std::int64_t lora = 0;
  std::string engine;         // deepspeed, fsdp, ddp
  std::string device;         // as printed
  bool device_known = false;  // its rates are: times mean seconds
  std::string settings_file;  // DeepSpeed's, of the user
  Limit limit;
  recompute::TimeModel time{{.name = "nothing", .flops_per_second = 1, .bytes_per_second = 1}};
  std::vector<std::string> notes;
};

// Reads and checks all that the options name. Throws UserError.
Subject make_subject(const PlanOptions& options);

// One setup evaluated: the smallest peak that recomputing can reach, and the plan.
recompute::Predictor predictor_of(const Subject& subject, const recompute::TrainingSetup& setup);
recompute::Plan plan_of(const Subject& subject, const recompute::TrainingSetup& setup,
                        const recompute::PlanRequest& request);
recompute::PlanRequest request_of(const Subject& subject, const PlanOptions& options);

}  // namespace ljtrain::ljperf
