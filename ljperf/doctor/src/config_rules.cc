// One row a rule. Adding one: a row here, and a line in tests/config_test.cc with a configuration
// that breaks it and one that nearly does. Checked against DeepSpeed 0.19.8 (runtime/config.py,
// runtime/zero/config.py) and transformers 5.24 (training_args.py, trainer.py).
#include "config_rules.h"

#include <algorithm>
#include <array>

namespace ljtrain::ljperf {
namespace {

using View = ConfigView;
constexpr auto kFail = Status::kFail;
constexpr auto kWarn = Status::kWarn;
constexpr auto kDeepSpeed = Side::kDeepSpeed;
constexpr auto kArguments = Side::kArguments;

bool fixed_prefetch(const View& v) {
  const base::Json& value = v.ds("/zero_optimization/stage3_prefetch_bucket_size");
  return !value.is_null() && value != "auto" && value != "";
}

bool release_forbids_prefetch(const View& v) {
  return v.machine().release.has_value() && v.machine().release->deepspeed_rules.contains(
                                                "zero_optimization.stage3_prefetch_bucket_size");
}

bool batch_contradiction(const View& v) {
  auto total = v.ds_integer("/train_batch_size");
  auto micro = v.ds_integer("/train_micro_batch_size_per_gpu");
  auto steps = v.ds_integer("/gradient_accumulation_steps");
  if (!total.has_value() || !micro.has_value() || *micro < 1 || *micro > 1'000'000) {
    return false;
  }
  long long one_rank = *micro * std::clamp(steps.value_or(1), 1LL, 1'000'000LL);
  auto world = v.machine().variable_number("WORLD_SIZE");
  return *total % one_rank != 0 ||
         (steps.has_value() && world.has_value() && *world > 0 && *total != one_rank * *world);
}

bool stage3_keys_elsewhere(const View& v) {
  const base::Json& section = v.ds("/zero_optimization");
  if (!section.is_object() || v.stage() == 3) {
    return false;
  }
  for (const auto& [key, value] : section.items()) {
    // The Trainer's own examples leave "auto" there; DeepSpeed drops it.
    if (key.starts_with("stage3_") && value != "auto") {
      return true;
    }
  }
  return false;
}

bool offloads_to_nvme_nowhere(const View& v) {
  for (const char* section :
       {"/zero_optimization/offload_param", "/zero_optimization/offload_optimizer"}) {
    if (v.ds(std::string(section) + "/device") == "nvme" &&
        !v.ds(std::string(section) + "/nvme_path").is_string()) {
      return true;
    }
  }
  return false;
}

bool saves_where_it_does_not_evaluate(const View& v) {
  if (!v.arg_on("load_best_model_at_end") || v.arg("save_strategy") == "best") {
    return false;
  }
  std::string save = v.arg("save_strategy").is_string() ? v.arg("save_strategy") : "steps";
  std::string eval = v.arg("eval_strategy").is_string() ? v.arg("eval_strategy") : "no";
  return save != eval;
}

bool reentrant(const View& v) {
  for (const char* name : {"gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"}) {
    const base::Json& kwargs = v.arg(name);
    if (kwargs.is_object() && kwargs.contains("use_reentrant") && kwargs["use_reentrant"] == true) {
      return true;
    }
  }
  return false;
}

bool uses_fsdp(const View& v) {
  const base::Json& value = v.arg("fsdp");
  return value == true || (value.is_string() && value != "") ||
         (value.is_array() && !value.empty());
}

bool trains_with_deepspeed(const View& v) { return v.has_deepspeed() || v.arg_has("deepspeed"); }

const auto kRules = std::to_array<ConfigRule>({
    // DeepSpeed's file alone.
    {"prefetch-release", kFail, kDeepSpeed, "/zero_optimization/stage3_prefetch_bucket_size",
     [](const View& v) { return fixed_prefetch(v) && release_forbids_prefetch(v); },
     "a fixed size", "empty or \"auto\", as the release asks", "leave the key out, or write \"auto\""},
    {"prefetch", kWarn, kDeepSpeed, "/zero_optimization/stage3_prefetch_bucket_size",
     [](const View& v) { return fixed_prefetch(v) && !release_forbids_prefetch(v); },
     "a fixed size does not follow the model", "empty or \"auto\"", "leave the key out, or write \"auto\""},
    {"activation-checkpointing", kWarn, kDeepSpeed, "/activation_checkpointing",
     [](const View& v) { return v.ds_has("/activation_checkpointing"); },
     "read by DeepSpeed and then ignored", "no such block", "use TrainingArguments(gradient_checkpointing=True) and take the block out"},
    {"precision", kFail, kDeepSpeed, "/fp16/enabled",
     [](const View& v) { return v.ds_on("/fp16/enabled") && v.ds_on("/bf16/enabled"); },
     "fp16 and bf16 are both on", "one of them", "set fp16.enabled to false"},
    {"batch", kFail, kDeepSpeed, "/train_batch_size", batch_contradiction,
     "not micro-batch x accumulation steps x ranks", "a product that agrees", "write \"auto\" for train_batch_size, or leave it out"},
    {"stage", kFail, kDeepSpeed, "/zero_optimization/stage",
     [](const View& v) { return v.ds_has("/zero_optimization/stage") && (!v.ds_integer("/zero_optimization/stage").has_value() || *v.ds_integer("/zero_optimization/stage") < 0 || *v.ds_integer("/zero_optimization/stage") > 3); },
     "no ZeRO stage", "0, 1, 2 or 3", "write one of these numbers; \"auto\" is none here"},
    {"stage3-keys", kWarn, kDeepSpeed, "/zero_optimization/stage", stage3_keys_elsewhere,
     "keys stage3_* without stage 3 have no effect", "stage 3, or none of them", "set the stage to 3, or take the keys out"},
    {"offload-param", kFail, kDeepSpeed, "/zero_optimization/offload_param",
     [](const View& v) { return v.stage() != 3 && v.ds("/zero_optimization/offload_param/device").is_string() && v.ds("/zero_optimization/offload_param/device") != "none"; },
     "parameters are offloaded by stage 3 only", "stage 3", "set the stage to 3, or take offload_param out"},
    {"offload-device", kFail, kDeepSpeed, "/zero_optimization",
     [](const View& v) { for (const char* key : {"/zero_optimization/offload_param/device", "/zero_optimization/offload_optimizer/device"}) { const base::Json& d = v.ds(key); if (!d.is_null() && d != "none" && d != "cpu" && d != "nvme") { return true; } } return false; },
     "an offload device that does not exist", "none, cpu or nvme", "write one of these"},
    {"offload-nvme", kFail, kDeepSpeed, "/zero_optimization", offloads_to_nvme_nowhere,
     "offload to nvme without nvme_path", "the folder of a local NVMe disk", "add nvme_path beside device"},
    {"offload-ratio", kFail, kDeepSpeed, "/zero_optimization/offload_optimizer/ratio",
     [](const View& v) { const base::Json& r = v.ds("/zero_optimization/offload_optimizer/ratio"); return v.stage() != 3 && r.is_number() && r.get<double>() < 1; },
     "part of the optimizer is offloaded by stage 3 only", "1, or stage 3", "set ratio to 1, or the stage to 3"},
    {"renamed", kWarn, kDeepSpeed, "/zero_optimization",
     [](const View& v) { for (const char* key : {"cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory", "stage3_gather_fp16_weights_on_model_save"}) { if (v.ds_has(std::string("/zero_optimization/") + key)) { return true; } } return false; },
     "a key that DeepSpeed has renamed", "offload_optimizer, offload_param, stage3_gather_16bit_weights_on_model_save", "write the new name"},
    {"elastic-checkpoint", kWarn, kDeepSpeed, "/zero_optimization/elastic_checkpoint",
     [](const View& v) { return v.stage() == 3 && v.ds_on("/zero_optimization/elastic_checkpoint"); },
     "no longer there in stage 3", "a universal checkpoint", "take the key out; see checkpoint.load_universal"},
    {"grad-norm", kFail, kDeepSpeed, "/zero_optimization/compute_grad_norm",
     [](const View& v) { return v.ds("/zero_optimization/compute_grad_norm") == false && v.stage() != 1 && v.stage() != 2; },
     "off, which only stages 1 and 2 can", "true", "take the key out"},
    {"allreduce-sum", kFail, kDeepSpeed, "/gradient_allreduce_op",
     [](const View& v) { return v.ds("/gradient_allreduce_op") == "sum" && v.stage() == 3; },
     "sum, which stage 3 refuses", "mean", "take the key out"},
    {"bf16-states", kFail, kDeepSpeed, "/bf16/bf16_optimizer_states",
     [](const View& v) { return v.ds_on("/bf16/bf16_optimizer_states") && !v.ds_on("/bf16/bf16_master_weights_and_grads"); },
     "needs bf16_master_weights_and_grads", "both or none", "set bf16_master_weights_and_grads to true"},
    {"master-weights", kFail, kDeepSpeed, "/bf16/bf16_master_weights_and_grads",
     [](const View& v) { return v.ds_on("/bf16/bf16_master_weights_and_grads") && v.stage() == 0; },
     "needs ZeRO stage 1, 2 or 3", "a stage from 1 on", "set zero_optimization.stage"},
    {"optimizer-clipping", kWarn, kDeepSpeed, "/optimizer/params/max_grad_norm",
     [](const View& v) { return v.ds_has("/optimizer/params/max_grad_norm"); },
     "ignored as a parameter of the optimizer", "gradient_clipping at the top", "move it to gradient_clipping"},
    {"wall-clock", kWarn, kDeepSpeed, "/wall_clock_breakdown",
     [](const View& v) { return v.ds_on("/wall_clock_breakdown"); },
     "on: it waits for the GPU at every timer", "false", "take it out but for a profile"},
    {"deepcompile", kWarn, kDeepSpeed, "/compile/deepcompile",
     [](const View& v) { return v.ds_on("/compile/deepcompile") && v.machine().gpus.gpus.empty(); },
     "DeepCompile needs CUDA, and there is no GPU here", "false on hosts", "take it out; torch_compile=True compiles"},
    {"communication-type", kWarn, kDeepSpeed, "/communication_data_type",
     [](const View& v) { return v.ds("/communication_data_type") == "fp16" && (v.ds_on("/bf16/enabled") || v.arg_on("bf16")); },
     "gradients in bf16 are sent as fp16 and overflow there", "bf16 or fp32", "leave communication_data_type out"},
    // The arguments alone.
    {"args-precision", kFail, kArguments, "/fp16",
     [](const View& v) { return v.arg_on("fp16") && v.arg_on("bf16"); },
     "fp16 and bf16 are both on", "one of them", "set fp16 to false"},
    {"prefetch-factor", kFail, kArguments, "/dataloader_prefetch_factor",
     [](const View& v) { return v.arg_has("dataloader_prefetch_factor") && v.arg_number("dataloader_num_workers").value_or(0) == 0; },
     "needs workers of the data loader", "dataloader_num_workers above 0", "set dataloader_num_workers, or take it out"},
    {"persistent-workers", kFail, kArguments, "/dataloader_persistent_workers",
     [](const View& v) { return v.arg_on("dataloader_persistent_workers") && v.arg_number("dataloader_num_workers").value_or(0) == 0; },
     "needs workers of the data loader", "dataloader_num_workers above 0", "set dataloader_num_workers, or take it out"},
    {"best-model", kFail, kArguments, "/load_best_model_at_end", saves_where_it_does_not_evaluate,
     "save_strategy and eval_strategy differ", "the same for both, or save_strategy \"best\"", "set eval_strategy to save_strategy"},
    {"checkpointing-kwargs", kWarn, kArguments, "/gradient_checkpointing_kwargs",
     [](const View& v) { return (v.arg_has("gradient_checkpointing_kwargs") || v.arg_has("activation_checkpointing_kwargs")) && !v.recomputes(); },
     "given, but checkpointing is off", "gradient_checkpointing true", "set gradient_checkpointing to true, or take them out"},
    {"reentrant", kWarn, kArguments, "/gradient_checkpointing_kwargs",
     [](const View& v) { return reentrant(v) && (v.arg_on("torch_compile") || v.machine().variable("CHECKPOINT_OPTIMIZATION") == "true"); },
     "use_reentrant true: neither compiling nor choosing what to recompute works through it", "use_reentrant false", "set use_reentrant to false"},
    {"recompute", kWarn, kArguments, "/gradient_checkpointing",
     [](const View& v) { return v.has_arguments() && v.machine().variable("CHECKPOINT_OPTIMIZATION") == "true" && !v.recomputes(); },
     "CHECKPOINT_OPTIMIZATION=true has no effect", "gradient_checkpointing true", "set gradient_checkpointing to true"},
    {"epochs", kWarn, kArguments, "/num_train_epochs",
     [](const View& v) { return v.arg_number("max_steps").value_or(-1) > 0 && v.arg_has("num_train_epochs"); },
     "ignored: max_steps decides", "one of the two", "take num_train_epochs out"},
    {"plateau", kFail, kArguments, "/lr_scheduler_type",
     [](const View& v) { return v.arg("lr_scheduler_type") == "reduce_lr_on_plateau" && (!v.arg_has("eval_strategy") || v.arg("eval_strategy") == "no"); },
     "reduce_lr_on_plateau needs evaluation", "eval_strategy steps or epoch", "set eval_strategy"},
    {"unused-parameters", kWarn, kArguments, "/ddp_find_unused_parameters",
     [](const View& v) { return v.arg_on("ddp_find_unused_parameters") && v.recomputes() && !trains_with_deepspeed(v); },
     "with recompute DDP may mark a parameter ready twice", "false", "set ddp_find_unused_parameters to false"},
    {"ddp-backend", kFail, kArguments, "/ddp_backend",
     [](const View& v) { return v.arg("ddp_backend") == "accl"; },
     "the Trainer refuses accl", "no ddp_backend", "take it out and set LJTRAIN_ACCL=1"},
    {"fsdp-cpu", kWarn, kArguments, "/fsdp",
     [](const View& v) { return uses_fsdp(v) && v.arg_on("use_cpu"); },
     "accelerate 1.15 turns FSDP on hosts into DDP without a word", "FSDP on GPUs", "use ljperf benchmark --model fsdp/..., which applies it itself"},
    // Both.
    {"fsdp-deepspeed", kFail, kArguments, "/fsdp",
     [](const View& v) { return uses_fsdp(v) && trains_with_deepspeed(v); },
     "FSDP beside DeepSpeed", "one of them", "take fsdp or deepspeed out"},
    {"find-batch", kFail, kArguments, "/auto_find_batch_size",
     [](const View& v) { return v.arg_on("auto_find_batch_size") && v.stage() == 3; },
     "the Trainer refuses it with ZeRO stage 3", "false", "set it to false, or use stage 1 or 2"},
    {"save-only-model", kFail, kArguments, "/save_only_model",
     [](const View& v) { return v.arg_on("save_only_model") && v.arg_on("load_best_model_at_end") && trains_with_deepspeed(v); },
     "the Trainer refuses it with load_best_model_at_end under DeepSpeed", "one of them", "set save_only_model to false"},
    {"optimizer-twice", kWarn, kArguments, "/optim",
     [](const View& v) { return v.arg_has("optim") && v.ds("/optimizer").is_object(); },
     "ignored: DeepSpeed's file names the optimizer", "one of the two", "take \"optimizer\" out of DeepSpeed's file, or optim out"},
    {"scheduler-twice", kWarn, kArguments, "/lr_scheduler_type",
     [](const View& v) { return v.arg_has("lr_scheduler_type") && v.ds("/scheduler").is_object(); },
     "ignored: DeepSpeed's file names the scheduler", "one of the two", "take \"scheduler\" out of DeepSpeed's file, or lr_scheduler_type out"},
    {"compile-twice", kWarn, kArguments, "/torch_compile",
     [](const View& v) { return v.arg_on("torch_compile") && v.ds_on("/compile/deepcompile"); },
     "torch_compile and DeepCompile both compile the model", "one of them", "take compile.deepcompile out of DeepSpeed's file"},
});

constexpr auto kTwins = std::to_array<Twin>({
    {"/train_micro_batch_size_per_gpu", "per_device_train_batch_size"},
    {"/gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"/gradient_clipping", "max_grad_norm"},
    {"/optimizer/params/lr", "learning_rate"},
    {"/optimizer/params/betas/0", "adam_beta1"},
    {"/optimizer/params/betas/1", "adam_beta2"},
    {"/optimizer/params/eps", "adam_epsilon"},
    {"/optimizer/params/weight_decay", "weight_decay"},
    {"/scheduler/params/warmup_max_lr", "learning_rate"},
    {"/scheduler/params/warmup_num_steps", "warmup_steps"},
    {"/fp16/enabled", "fp16"},
    {"/bf16/enabled", "bf16"},
});

constexpr auto kMayBeAuto = std::to_array<std::string_view>({
    "/train_batch_size",
    "/train_micro_batch_size_per_gpu",
    "/gradient_accumulation_steps",
    "/gradient_clipping",
    "/optimizer/params/lr",
    "/optimizer/params/betas",
    "/optimizer/params/eps",
    "/optimizer/params/weight_decay",
    "/scheduler/params/warmup_min_lr",
    "/scheduler/params/warmup_max_lr",
    "/scheduler/params/warmup_num_steps",
    "/scheduler/params/total_num_steps",
    "/fp16/enabled",
    "/bf16/enabled",
    "/data_types/keep_in_fp32_modules",
});

}  // namespace

std::span<const ConfigRule> config_rules() { return kRules; }
std::span<const Twin> config_twins() { return kTwins; }
std::span<const std::string_view> keys_that_may_be_auto() { return kMayBeAuto; }

}  // namespace ljtrain::ljperf
