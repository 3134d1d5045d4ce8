#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "config_check.h"
#include "config_rules.h"
#include "doctor/machine.h"

namespace ljtrain::ljperf {
namespace {

// A configuration that breaks a rule, and one that nearly does and must stay ok.
struct Case {
  const char* id;
  const char* deepspeed;  // "" for none
  const char* arguments;
  const char* fine_deepspeed;
  const char* fine_arguments;
  const char* variable = "";  // NAME=VALUE, set for both
};

const Case kCases[] = {
    {"unknown-key", R"({"zero_optimisation": {}})", "", R"({"_comment": "x"})", ""},
    {"unknown-key", R"({"zero_optimization": {"ofload_param": {}}})", "",
     R"({"zero_optimization": {"offload_param": {"device": "none"}}})", ""},
    {"unknown-key", "", R"({"learning_rat": 1})", "", R"({"learning_rate": 1})"},
    {"auto", R"({"steps_per_print": "auto"})", "", R"({"gradient_clipping": "auto"})", ""},
    {"auto", R"({"optimizer": {"type": "auto"}})", "",
     R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})", ""},
    {"twins", R"({"gradient_clipping": 0.5})", R"({"max_grad_norm": 1.0})",
     R"({"gradient_clipping": 1})", R"({"max_grad_norm": 1.0})"},
    {"twins", R"({"bf16": {"enabled": true}})", R"({"bf16": false})",
     R"({"bf16": {"enabled": "auto"}})", R"({"bf16": false})"},
    {"prefetch", R"({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 5000}})", "",
     R"({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto"}})", ""},
    {"prefetch-release",
     R"({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 5000}})", "",
     R"({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": ""}})", "", "RELEASE=1"},
    {"activation-checkpointing", R"({"activation_checkpointing": {}})", "", "{}",
     R"({"activation_checkpointing": true})"},
    {"precision", R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})", "",
     R"({"fp16": {"enabled": false}, "bf16": {"enabled": true}})", ""},
    {"batch", R"({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2})", "",
     R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2})", ""},
    {"batch",
     R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1})",
     "",
     R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1})",
     "", "WORLD_SIZE=8"},
    {"stage", R"({"zero_optimization": {"stage": 4}})", "",
     R"({"zero_optimization": {"stage": 3}})", ""},
    {"stage3-keys", R"({"zero_optimization": {"stage": 2, "stage3_max_live_parameters": 1}})", "",
     R"({"zero_optimization": {"stage": 2, "stage3_param_persistence_threshold": "auto"}})", ""},
    {"offload-param", R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})",
     "", R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "none"}}})", ""},
    {"offload-device",
     R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "disk"}}})", "",
     R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})", ""},
    {"offload-nvme", R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})",
     "",
     R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/a"}}})",
     ""},
    {"offload-ratio",
     R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}})",
     "",
     R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}})",
     ""},
    {"renamed", R"({"zero_optimization": {"stage": 2, "cpu_offload": true}})", "",
     R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})", ""},
    {"elastic-checkpoint", R"({"zero_optimization": {"stage": 3, "elastic_checkpoint": true}})", "",
     R"({"zero_optimization": {"stage": 2, "elastic_checkpoint": true}})", ""},
    {"grad-norm", R"({"zero_optimization": {"stage": 3, "compute_grad_norm": false}})", "",
     R"({"zero_optimization": {"stage": 2, "compute_grad_norm": false}})", ""},
    {"allreduce-sum", R"({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3}})", "",
     R"({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 2}})", ""},
    {"bf16-states",
     R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}, "zero_optimization": {"stage": 2}})",
     "",
     R"({"bf16": {"enabled": true, "bf16_optimizer_states": true, "bf16_master_weights_and_grads": true}, "zero_optimization": {"stage": 2}})",
     ""},
    {"master-weights", R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})", "",
     R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}, "zero_optimization": {"stage": 1}})",
     ""},
    {"optimizer-clipping", R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}})", "",
     R"({"optimizer": {"type": "Adam", "params": {"lr": 1}}, "gradient_clipping": 1})", ""},
    {"wall-clock", R"({"wall_clock_breakdown": true})", "", R"({"wall_clock_breakdown": false})",
     ""},
    {"deepcompile", R"({"compile": {"deepcompile": true}})", "",
     R"({"compile": {"deepcompile": false}})", ""},
    {"communication-type", R"({"communication_data_type": "fp16", "bf16": {"enabled": true}})", "",
     R"({"communication_data_type": "fp16", "fp16": {"enabled": true}})", ""},
    {"args-precision", "", R"({"fp16": true, "bf16": true})", "",
     R"({"fp16": false, "bf16": true})"},
    {"prefetch-factor", "", R"({"dataloader_prefetch_factor": 2})", "",
     R"({"dataloader_prefetch_factor": 2, "dataloader_num_workers": 1})"},
    {"persistent-workers", "", R"({"dataloader_persistent_workers": true})", "",
     R"({"dataloader_persistent_workers": true, "dataloader_num_workers": 1})"},
    {"best-model", "", R"({"load_best_model_at_end": true, "save_strategy": "epoch"})", "",
     R"({"load_best_model_at_end": true, "save_strategy": "best"})"},
    {"checkpointing-kwargs", "", R"({"gradient_checkpointing_kwargs": {"use_reentrant": false}})",
     "",
     R"({"gradient_checkpointing_kwargs": {"use_reentrant": false}, "activation_checkpointing": true})"},
    {"reentrant", "",
     R"({"gradient_checkpointing": true, "gradient_checkpointing_kwargs": {"use_reentrant": true}, "torch_compile": true})",
     "",
     R"({"gradient_checkpointing": true, "gradient_checkpointing_kwargs": {"use_reentrant": true}})"},
    {"recompute", "", R"({"bf16": true})", "", R"({"gradient_checkpointing": true})",
     "CHECKPOINT_OPTIMIZATION=true"},
    {"epochs", "", R"({"max_steps": 10, "num_train_epochs": 3})", "",
     R"({"max_steps": -1, "num_train_epochs": 3})"},
    {"plateau", "", R"({"lr_scheduler_type": "reduce_lr_on_plateau"})", "",
     R"({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"})"},
    {"unused-parameters", "",
     R"({"ddp_find_unused_parameters": true, "gradient_checkpointing": true})", "",
     R"({"ddp_find_unused_parameters": false, "gradient_checkpointing": true})"},
    {"ddp-backend", "", R"({"ddp_backend": "accl"})", "", R"({"ddp_backend": "gloo"})"},
    {"fsdp-cpu", "", R"({"fsdp": true, "use_cpu": true})", "", R"({"fsdp": true})"},
    {"fsdp-deepspeed", "{}", R"({"fsdp": "full_shard"})", "{}", R"({"fsdp": ""})"},
    {"find-batch", R"({"zero_optimization": {"stage": 3}})", R"({"auto_find_batch_size": true})",
     R"({"zero_optimization": {"stage": 2}})", R"({"auto_find_batch_size": true})"},
    {"save-only-model", "{}",
     R"({"save_only_model": true, "load_best_model_at_end": true, "save_strategy": "best"})", "",
     R"({"save_only_model": true, "load_best_model_at_end": true, "save_strategy": "best"})"},
    {"optimizer-twice", R"({"optimizer": {"type": "AdamW"}})", R"({"optim": "adamw_torch"})", "{}",
     R"({"optim": "adamw_torch"})"},
    {"scheduler-twice", R"({"scheduler": {"type": "WarmupLR"}})",
     R"({"lr_scheduler_type": "cosine"})", "{}", R"({"lr_scheduler_type": "cosine"})"},
    {"compile-twice", R"({"compile": {"deepcompile": true}})", R"({"torch_compile": true})", "{}",
     R"({"torch_compile": true})"},
};

std::vector<Finding> checked(const Case& c, const char* deepspeed, const char* arguments) {
  Machine fake;
  std::string variable = c.variable;
  if (variable == "RELEASE=1") {
    fake.release = image::find_release("25.07");
  } else if (!variable.empty()) {
    fake.environment[variable.substr(0, variable.find('='))] =
        variable.substr(variable.find('=') + 1);
  }
  if (*deepspeed != '\0') {
    fake.deepspeed = base::JsonDocument::parse(deepspeed, "ds.json");
  }
  if (*arguments != '\0') {
    fake.training_arguments = base::JsonDocument::parse(arguments, "args.json");
  }
  return check_configuration(fake);
}

TEST(ConfigRules, FindWhatBreaksThemAndNothingElse) {
  for (const Case& c : kCases) {
    std::vector<Finding> broken = checked(c, c.deepspeed, c.arguments);
    bool found = std::any_of(broken.begin(), broken.end(), [&](const Finding& finding) {
      return finding.id == fmt::format("config.{}", c.id) && !finding.fix.empty() &&
             finding.status != Status::kOk;
    });
    EXPECT_TRUE(found) << c.id << ": " << c.deepspeed << c.arguments;
    for (const Finding& finding : checked(c, c.fine_deepspeed, c.fine_arguments)) {
      EXPECT_EQ(finding.status, Status::kOk)
          << c.id << " fine: " << finding.id << " " << finding.found;
    }
  }
}

TEST(ConfigRules, EachHasACase) {
  std::set<std::string> seen;
  for (const Case& c : kCases) {
    seen.insert(c.id);
  }
  for (const ConfigRule& rule : config_rules()) {
    EXPECT_TRUE(seen.contains(std::string(rule.id))) << rule.id;
  }
}

TEST(ConfigRules, NearestNameAndLineAreShownButNoText) {
  Machine fake;
  fake.training_arguments = base::JsonDocument::parse(
      "{\n \"hub_tokn\": \"hf_verysecretverysecret\",\n \"bf16\": true\n}", "args.json");
  std::vector<Finding> findings = check_configuration(fake);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_NE(findings[0].found.find("args.json:2"), std::string::npos);
  EXPECT_NE(findings[0].fix.find("hub_token"), std::string::npos);
  EXPECT_EQ(findings[0].found.find("verysecret"), std::string::npos);
}

TEST(ConfigRules, SurviveWrongTypesEverywhere) {
  for (const char* text :
       {R"({"zero_optimization": true})", R"({"zero_optimization": [1]})", R"({"bf16": "auto"})",
        R"({"optimizer": 3, "scheduler": null, "compile": []})", R"({"train_batch_size": "x"})",
        R"({"train_batch_size": 0, "train_micro_batch_size_per_gpu": 0})",
        R"({"zero_optimization": {"stage": 99999999999999999999}})"}) {
    Machine fake;
    fake.deepspeed = base::JsonDocument::parse(text, "ds.json");
    fake.training_arguments = base::JsonDocument::parse(text, "args.json");
    EXPECT_FALSE(check_configuration(fake).empty()) << text;
  }
}

}  // namespace
}  // namespace ljtrain::ljperf
