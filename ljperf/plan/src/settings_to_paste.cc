#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "answer.h"
#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

using base::OrderedJson;
using recompute::Engine;
using recompute::LayerPolicy;

OrderedJson offload() { return {{"device", "cpu"}, {"pin_memory", true}}; }

// A whole number where it is one: DeepSpeed's sizes are counts.
OrderedJson size(double value) { return static_cast<std::int64_t>(value); }

OrderedJson deepspeed_json(const Subject& subject) {
  const recompute::EngineKnobs& knobs = subject.setup.knobs;
  int stage = static_cast<int>(subject.setup.engine) - static_cast<int>(Engine::kZero0);
  OrderedJson zero{{"stage", stage},
                   {"overlap_comm", knobs.overlap_comm.value_or(true)},
                   {"contiguous_gradients", knobs.contiguous_gradients}};
  if (stage == 3) {
    zero["reduce_bucket_size"] = "auto";
    zero["stage3_prefetch_bucket_size"] = "auto";
    zero["stage3_param_persistence_threshold"] = "auto";
  } else {
    zero["reduce_bucket_size"] = size(knobs.reduce_bucket_size);
    zero["allgather_bucket_size"] = size(knobs.allgather_bucket_size);
  }
  if (knobs.offload_optimizer) {
    zero["offload_optimizer"] = offload();
  }
  if (knobs.offload_param) {
    zero["offload_param"] = offload();
  }
  return {{"train_micro_batch_size_per_gpu", "auto"},
          {"gradient_accumulation_steps", "auto"},
          {"gradient_clipping", "auto"},
          {"bf16", {{"enabled", "auto"}}},
          {"zero_optimization", zero}};
}

std::string python_value(const OrderedJson& value) {
  if (value.is_boolean()) {
    return value.get<bool>() ? "True" : "False";
  }
  if (value.is_object()) {
    std::vector<std::string> items;
    for (const auto& [key, item] : value.items()) {
      items.push_back(fmt::format("\"{}\": {}", key, python_value(item)));
    }
    return fmt::format("{{{}}}", fmt::join(items, ", "));
  }
  return value.dump();
}

// "aten.mm" is torch.ops.aten.mm.default; overloads are named.
std::string operator_in_python(std::string name) {
  // Profiles are traced on the CPU, whose attention has its own name.
  constexpr std::string_view kCpu = "_for_cpu";
  if (name.ends_with(kCpu)) {
    name.erase(name.size() - kCpu.size());
  }
  bool overload = std::ranges::count(name, '.') > 1;
  return fmt::format("torch.ops.{}{}", name, overload ? "" : ".default");
}

// What chooses layers in stock transformers: each layer of a model is a GradientCheckpointingLayer
// with a switch and a function of its own.
std::string python_of(const recompute::Policy& policy) {
  std::size_t layers = policy.layers.size();
  auto count = [&policy](LayerPolicy wanted) {
    return static_cast<std::size_t>(std::ranges::count(policy.layers, wanted));
  };
  if (count(LayerPolicy::kNone) == layers || count(LayerPolicy::kFull) == layers) {
    return "";
  }
  std::string text =
      "from transformers.modeling_layers import GradientCheckpointingLayer\n"
      "layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]\n"
      "model.gradient_checkpointing_enable({\"use_reentrant\": False})\n";
  if (count(LayerPolicy::kSelected) > 0) {
    std::vector<std::string> operators;
    for (const std::string& name : policy.kept_operators) {
      operators.push_back("    " + operator_in_python(name) + ",\n");
    }
    text =
        "import functools\nimport torch\nfrom torch.utils.checkpoint import checkpoint, "
        "create_selective_checkpoint_contexts\n" +
        text + fmt::format("keep = [\n{}]\n", fmt::join(operators, "")) +
        "selected = functools.partial(checkpoint, use_reentrant=False, context_fn=\n"
        "    functools.partial(create_selective_checkpoint_contexts, keep))\n";
  }
  for (std::size_t i = 0; i < layers;) {
    std::size_t end = i;
    while (end < layers && policy.layers[end] == policy.layers[i]) {
      ++end;
    }
    if (policy.layers[i] == LayerPolicy::kNone) {
      text += fmt::format("for layer in layers[{}:{}]:\n    layer.gradient_checkpointing = False\n",
                          i, end);
    } else if (policy.layers[i] == LayerPolicy::kSelected) {
      text += fmt::format(
          "for layer in layers[{}:{}]:\n    layer._gradient_checkpointing_func = selected\n", i,
          end);
    }
    i = end;
  }
  return text;
}

}  // namespace

SettingsToPaste settings_to_paste(const Subject& subject, const recompute::Plan& plan) {
  SettingsToPaste settings;
  settings.python = python_of(plan.policy);
  // Where the lines above switch it on, the Trainer must not do so again for all layers.
  bool by_trainer = plan.recomputed_layers > 0 && settings.python.empty();
  settings.training_arguments = {
      {"bf16", true},
      {"per_device_train_batch_size", subject.setup.micro_batch},
      {"gradient_accumulation_steps", subject.setup.gradient_accumulation},
      {"gradient_checkpointing", by_trainer}};
  if (by_trainer) {
    settings.training_arguments["gradient_checkpointing_kwargs"] = {{"use_reentrant", false}};
  }
  if (subject.setup.compiled) {
    settings.training_arguments["torch_compile"] = true;
  }
  if (subject.engine == "deepspeed") {
    bool own = !subject.settings_file.empty();
    if (!own) {
      settings.deepspeed = deepspeed_json(subject);
    }
    settings.training_arguments["deepspeed"] = own ? subject.settings_file : "deepspeed.json";
  } else if (subject.engine == "fsdp") {
    settings.training_arguments["fsdp"] = true;
  }
  return settings;
}

std::string training_arguments_text(const SettingsToPaste& settings) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : settings.training_arguments.items()) {
    lines.push_back(fmt::format("    {}={},\n", key, python_value(value)));
  }
  return fmt::format("TrainingArguments(\n{})\n", fmt::join(lines, ""));
}

}  // namespace ljtrain::ljperf
