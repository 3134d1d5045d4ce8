// ljperf plan: predicts the memory of a training and what to recompute, without a GPU or PyTorch.
#include <memory>

#include "commands.h"
#include "plan/options.h"
#include "plan/run_plan.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf plan --model llama3-8b                               8 H100, ZeRO-3, 8192 tokens: what to recompute
  ljperf plan --model llama3-8b --devices 8 --device-memory 80GiB --zero 3 --seq 8192 --micro-batch 1
  ljperf plan --config config.json --engine fsdp --device a100-40gb --json
  ljperf plan --model llama3-70b --devices 32 --plot step.html  the step's memory, moment by moment
  ljperf plan --model qwen3-8b --recompute 12                 what recomputing 12 layers would take
  ljperf plan --config config.json --profile profile.json     a family of your own (ljperf trace)

Exit codes: 0 it fits, 1 it does not (the output says what is too large and what would fit), 2 bad input.
)";

void add_subject_options(CLI::App& command, PlanOptions& options) {
  command.add_option("--model", options.model, "NAME or ENGINE/NAME, see `ljperf models`")
      ->group("Model");
  command.add_option("--config", options.config, "A Hugging Face config.json instead")
      ->group("Model");
  command
      .add_option("--profile", options.profile,
                  "Memory profile made by `ljperf trace`, if not shipped")
      ->group("Model");
  command.add_option("--seq", options.seq, "Tokens a sequence, the longest (default 8192)")
      ->group("Model");
  command.add_option("--micro-batch", options.micro_batch, "Sequences a rank handles at once")
      ->group("Model")
      ->capture_default_str();
  command.add_option("--accumulation", options.accumulation, "Micro-batches a step")
      ->group("Model")
      ->capture_default_str();
  command.add_option("--lora", options.lora, "Rank of LoRA adapters; the base is frozen")
      ->group("Model");
}

void add_engine_options(CLI::App& command, PlanOptions& options) {
  command.add_option("--engine", options.engine, "deepspeed (default), fsdp or ddp")
      ->group("Engine");
  command.add_option("--zero", options.zero, "ZeRO stage, 0 to 3 (default 3)")->group("Engine");
  command
      .add_option("--deepspeed-config", options.deepspeed_config,
                  "DeepSpeed JSON: its stage, buckets and offloading")
      ->group("Engine");
  command
      .add_option("--precision", options.precision,
                  "bf16, bf16_autocast, autocast or fp32 (default: the engine's under bf16=True)")
      ->group("Engine");
  command.add_flag("--compile", options.compile, "torch.compile")->group("Engine");
  command
      .add_flag("--fused-loss", options.fused_loss,
                "Head and loss computed in one, without whole logits")
      ->group("Engine");
  command
      .add_flag("--offload-optimizer", options.offload_optimizer,
                "Optimizer states on the host (ZeRO)")
      ->group("Engine");
  command
      .add_flag("--offload-parameters", options.offload_parameters,
                "Parameters on the host (ZeRO-3)")
      ->group("Engine");
}

void add_device_options(CLI::App& command, PlanOptions& options) {
  command.add_option("--devices", options.devices, "Devices, one rank each")
      ->group("Device")
      ->capture_default_str();
  command
      .add_option("--device", options.device, "Its name: h100 (default), a100-40gb, ..., or host")
      ->group("Device");
  command.add_option("--device-memory", options.device_memory, "Memory of one, as in 80GiB")
      ->group("Device");
  command
      .add_option("--limit", options.limit,
                  "What a rank may use (default LJTRAIN_MEMORY_LIMIT, else the memory less 5 %)")
      ->group("Device");
  command
      .add_option("--record", options.record,
                  "A benchmark's record: times as measured there, not from data sheets")
      ->group("Device");
}

void add_policy_options(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--recompute", options.recompute,
                  "Recompute the first K layers instead of choosing")
      ->group("Recompute");
  command
      .add_option("--keep", options.keep,
                  "Operators whose outputs recomputed layers keep, as in aten.mm,aten.addmm")
      ->group("Recompute")
      ->delimiter(',');
  command
      .add_flag("--whole-layers", options.whole_layers,
                "Layers keep all or nothing, no selected operators")
      ->group("Recompute");
}

}  // namespace

void add_plan(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand(
      "plan", "Predict memory: what fits, what to recompute. No GPU, no PyTorch");
  auto options = std::make_shared<PlanOptions>();
  add_subject_options(*command, *options);
  add_engine_options(*command, *options);
  add_device_options(*command, *options);
  add_policy_options(*command, *options);
  command->add_flag("--json", options->json, "One JSON document on standard output")
      ->group("Output");
  command->add_option("--plot", options->plot, "HTML page of memory over the step")
      ->group("Output");
  command->footer(kExamples);
  command->callback([&context, options] { context.exit_code = run_plan(*options); });
}

}  // namespace ljtrain::ljperf
