#include "deepspeed_config.h"

#include <array>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

using base::JsonDocument;
using base::OrderedJson;
using Pointer = base::Json::json_pointer;

constexpr int kDefaultStage = 3;
// Elements a reduction. "auto" would be the square of the hidden size, hundreds of small reductions
// a step on a proxy: docs/decisions/base-stack.md.
constexpr int kReduceBucketSize = 50'000'000;

// A key of DeepSpeed's JSON and the TrainingArgument that decides the same (transformers 5.24,
// integrations/deepspeed.py, trainer_config_process and trainer_config_finalize).
struct Twin {
  const char* key;
  const char* argument;
};
constexpr std::array kTwins{
    Twin{"/gradient_accumulation_steps", "gradient_accumulation_steps"},
    Twin{"/gradient_clipping", "max_grad_norm"},
    Twin{"/bf16/enabled", "bf16"},
    Twin{"/fp16/enabled", "fp16"},
    Twin{"/optimizer/params/lr", "learning_rate"},
    Twin{"/optimizer/params/eps", "adam_epsilon"},
    Twin{"/optimizer/params/weight_decay", "weight_decay"},
    Twin{"/optimizer/params/betas/0", "adam_beta1"},
    Twin{"/optimizer/params/betas/1", "adam_beta2"},
    Twin{"/scheduler/params/warmup_max_lr", "learning_rate"},
    Twin{"/scheduler/params/warmup_num_steps", "warmup_steps"},
};
constexpr const char* kBetas = "/optimizer/params/betas";

// What the transformers documentation gives for ZeRO-3: "auto" lets the Trainer fill in its own
// arguments, and sizes prefetching and persistence by the model.
OrderedJson defaults() {
  return {{"train_micro_batch_size_per_gpu", "auto"},
          {"gradient_accumulation_steps", "auto"},
          {"gradient_clipping", "auto"},
          {"bf16", {{"enabled", "auto"}}},
          {"zero_optimization",
           {{"stage", kDefaultStage},
            {"overlap_comm", true},
            {"contiguous_gradients", true},
            {"reduce_bucket_size", kReduceBucketSize},
            {"stage3_prefetch_bucket_size", "auto"},
            {"stage3_param_persistence_threshold", "auto"}}}};
}

std::optional<int> positive_number(const JsonDocument& document, const char* key) {
  Pointer pointer(key);
  if (!document.root().contains(pointer) || document.root()[pointer] == "auto") {
    return std::nullopt;
  }
  const base::Json& value = document.root()[pointer];
  if (!value.is_number_integer() || value < 1 || value > 1'000'000) {
    throw base::user_error("{}: {} must be a whole number from 1 on, or \"auto\"",
                           document.where(pointer), value.dump());
  }
  return value.get<int>();
}

int zero_stage_of(const JsonDocument& document) {
  Pointer section("/zero_optimization");
  Pointer stage("/zero_optimization/stage");
  if (!document.root().contains(section)) {
    return kDefaultStage;
  }
  if (!document.root()[section].is_object()) {
    throw base::user_error("{}: must be an object with the key \"stage\"", document.where(section));
  }
  if (!document.root().contains(stage)) {
    return 0;  // DeepSpeed's own default
  }
  const base::Json& value = document.root()[stage];
  if (!value.is_number_integer() || value < 0 || value > 3) {
    throw base::user_error("{}: {} is no ZeRO stage; use 0, 1, 2 or 3", document.where(stage),
                           value.dump());
  }
  return value.get<int>();
}

void read_file(DeepSpeedConfig& config, const std::filesystem::path& file,
               std::optional<int> micro_batch) {
  JsonDocument document = JsonDocument::read(file);
  if (!document.root().is_object()) {
    throw base::user_error("{}: must hold a JSON object, as DeepSpeed's configuration does",
                           file.string());
  }
  for (const char* key : {"/bf16", "/fp16", "/optimizer", "/scheduler"}) {
    Pointer pointer(key);
    if (document.root().contains(pointer) && !document.root()[pointer].is_object()) {
      throw base::user_error("{}: must be an object", document.where(pointer));
    }
  }
  config.zero_stage = zero_stage_of(document);
  config.micro_batch = positive_number(document, "/train_micro_batch_size_per_gpu");
  config.train_batch = positive_number(document, "/train_batch_size");
  config.where_train_batch = document.where(Pointer("/train_batch_size"));
  positive_number(document, "/gradient_accumulation_steps");
  if (config.micro_batch.has_value() && micro_batch.has_value() &&
      *config.micro_batch != *micro_batch) {
    throw base::user_error("{}: {} contradicts --micro-batch {}; leave one of them out",
                           document.where(Pointer("/train_micro_batch_size_per_gpu")),
                           *config.micro_batch, *micro_batch);
  }
  for (const auto& [key, value] : document.root().items()) {
    config.json[key] = value;
  }
}

}  // namespace

DeepSpeedConfig make_deepspeed_config(const std::filesystem::path& file, std::optional<int> zero,
                                      std::optional<int> micro_batch, const Settings& set) {
  DeepSpeedConfig config;
  config.json = defaults();
  if (!file.empty()) {
    read_file(config, file, micro_batch);
  }
  if (zero.has_value()) {
    config.zero_stage = *zero;
  }
  config.json["zero_optimization"]["stage"] = config.zero_stage;
  for (const Twin& twin : kTwins) {
    OrderedJson::json_pointer pointer(twin.key);
    if (!config.json.contains(pointer) || config.json[pointer] == "auto") {
      continue;
    }
    if (set.contains(twin.argument)) {
      // The two betas are one key: "auto" stands for both.
      bool is_beta = pointer.parent_pointer() == OrderedJson::json_pointer(kBetas);
      config.json[is_beta ? pointer.parent_pointer() : pointer] = "auto";
    } else {
      config.decided[twin.argument] = config.json[pointer];
    }
  }
  return config;
}

}  // namespace ljtrain::ljperf
