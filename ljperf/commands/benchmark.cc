// ljperf benchmark: trains a model with the stock stack and measures it.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "base/errors.h"
#include "benchmark/options.h"
#include "benchmark/run_benchmark.h"
#include "commands.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf benchmark --model deepspeed/llama3-8b              train, measure, print a table, keep a record
  ljperf benchmark --model deepspeed/llama3-8b --repeat 5   with a 95 % interval over five runs
  ljperf benchmark --model fsdp/qwen3-8b --json             one JSON document on standard output
  ljperf benchmark --model ddp/bert-large --dry-run         say what would be done, start nothing
  ljperf benchmark --config config.json --data corpus.txt   a model and a text of your own
  ljperf benchmark --model deepspeed/llama3-8b --set learning_rate=1e-3 --set adam_beta2=0.95

Exit codes: 0 done, 1 the training failed, 2 bad input, 130 interrupted. Records of all runs are kept in
$LJTRAIN_RECORDS, else ~/.local/share/ljtrain/records.
)";

void add_model_options(CLI::App& command, BenchmarkOptions& options) {
  command
      .add_option("--model", options.model,
                  "ENGINE/NAME, see `ljperf models`; with --config the ENGINE alone")
      ->group("Model");
  command
      .add_option("--config", options.config,
                  "A Hugging Face config.json instead of a catalogue model")
      ->group("Model");
  command
      .add_option("--scale", options.scale,
                  "full, 1/D, or auto: the full model if it fits, else a proxy")
      ->group("Model")
      ->capture_default_str();
  command
      .add_option("--seq", options.seq, "Tokens a sequence (default 512 on hosts, 8192 on GPUs)")
      ->group("Model");
  command
      .add_option("--micro-batch", options.micro_batch,
                  "Sequences a rank handles at once (default 1)")
      ->group("Model");
  command
      .add_option("--data", options.data,
                  "Text, or .jsonl with a \"text\" key (default: mock data)")
      ->group("Model");
  command
      .add_option("--tokenizer", options.tokenizer,
                  "Folder of a tokenizer (default: one token a byte)")
      ->group("Model");
}

void add_engine_options(CLI::App& command, BenchmarkOptions& options) {
  command.add_option("--zero", options.zero, "ZeRO stage, 0 to 3 (engine deepspeed; default 3)")
      ->group("Engine");
  command
      .add_option("--ranks", options.ranks, "Processes (default: one a GPU, on hosts one a core)")
      ->group("Engine");
  command.add_flag("--oversubscribe", options.oversubscribe, "Allow more ranks than cores")
      ->group("Engine");
  command.add_option("--set", options.set, "KEY=VALUE for any of transformers' TrainingArguments")
      ->group("Engine")
      ->allow_extra_args(false);
  command.add_option("--deepspeed-config", options.deepspeed_config, "DeepSpeed JSON file")
      ->group("Engine");
  command.add_option("--with", options.with, "Parts to switch on: stack,accl,compile,recompute")
      ->group("Engine")
      ->delimiter(',');
  command.add_option("--without", options.without, "Parts to switch off")
      ->group("Engine")
      ->delimiter(',');
  command
      .add_option("--memory-limit", options.memory_limit,
                  "Memory a rank's tensors may take, as 20GiB (LJTRAIN_MEMORY_LIMIT)")
      ->group("Engine");
  command
      .add_option("--stock-compile", options.stock_compile,
                  "PyTorch's own torch.compile: none, full, or accelerate's regional")
      ->group("Engine")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "full", "regional"}));
  command
      .add_option("--collectives", options.collectives,
                  "real, or none: ranks exchange nothing, to see what communication costs at most")
      ->group("Engine")
      ->capture_default_str()
      ->check(CLI::IsMember({"real", "none"}));
  command
      .add_option("--allocator", options.allocator,
                  "malloc of the ranks: glibc (default), jemalloc or tcmalloc")
      ->group("Engine");
  command
      .add_flag("--huge-pages,!--no-huge-pages", options.huge_pages,
                "Transparent huge pages for what the ranks allocate")
      ->group("Engine");
  command.add_option("--python", options.python, "Python of the environment that trains")
      ->group("Engine");
}

void add_measurement_options(CLI::App& command, BenchmarkOptions& options) {
  command
      .add_option("--steps", options.steps,
                  "Measured steps a run, at least; --warmup auto runs a quarter more")
      ->group("Measurement")
      ->capture_default_str();
  command
      .add_option("--warmup", options.warmup,
                  "auto (found from the step times) or a number of steps")
      ->group("Measurement")
      ->capture_default_str();
  command.add_option("--repeat", options.repeat, "Runs; from 2 on a 95 % interval is given")
      ->group("Measurement")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of weights and data")
      ->group("Measurement")
      ->capture_default_str();
  command.add_option("--flops", options.flops, "Convention: megatron, torchtitan, palm or 6n")
      ->group("Measurement")
      ->capture_default_str();
  command
      .add_option("--step-timeout", options.step_timeout,
                  "Seconds without a step until a rank counts as hung")
      ->group("Measurement")
      ->capture_default_str();
  command
      .add_flag("--measure-overhead", options.measure_overhead,
                "Switch the instrumentation on and off in blocks of steps and say what it costs")
      ->group("Measurement");
}

void add_output_options(CLI::App& command, BenchmarkOptions& options) {
  command.add_flag("--json", options.json, "One JSON document on standard output")->group("Output");
  command.add_flag("--dry-run", options.dry_run, "Say all that would be done, start nothing")
      ->group("Output");
  command.add_option("--output", options.output, "Folder for the training's own output and logs")
      ->group("Output");
  command
      .add_flag("--env-dump", options.env_dump, "Print the environment, secrets redacted, and stop")
      ->group("Output");
  command
      .add_flag("--verbose", options.verbose, "Tracebacks and the workers' last lines on errors")
      ->group("Output");
}

}  // namespace

void add_benchmark(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand(
      "benchmark", "Train a model and measure it: speed, memory, where the step goes");
  auto options = std::make_shared<BenchmarkOptions>();
  add_model_options(*command, *options);
  add_engine_options(*command, *options);
  add_measurement_options(*command, *options);
  add_output_options(*command, *options);
  command->footer(kExamples);
  command->callback([&context, options, command] {
    if (command->count("--huge-pages") == 0) {
      options->huge_pages.reset();  // CLI11 gives a flag that is not there as false
    }
    options->command_line = context.command_line;
    context.exit_code = run_benchmark(*options);
  });
}

}  // namespace ljtrain::ljperf
