// ljperf: measures the training of language models.
#include <fmt/format.h>

#include "base/command_line.h"
#include "commands.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf benchmark --model deepspeed/llama3-8b
  ljperf benchmark --model fsdp/qwen3-8b --repeat 5 --json > result.json
  ljperf benchmark --config my-model/config.json --data corpus.txt --dry-run
  ljperf train train.py --learning-rate 1e-4
  ljperf comm --peers mpi,gloo --check
  ljperf memory snapshot.pickle --limit 80GiB
  ljperf compile --explain llama3-8b
  ljperf plan --model llama3-8b --devices 8 --device-memory 80GiB
  ljperf doctor
  ljperf models
)";

int run(int argc, char** argv) {
  CLI::App app("Measures the training of language models with PyTorch, honestly and repeatably.",
               "ljperf");
  app.footer(kExamples);
  app.set_version_flag("--version", fmt::format("ljperf {}", LJTRAIN_VERSION));
  app.require_subcommand(1);
  app.get_formatter()->column_width(30);
  CommandContext context;
  context.command_line.assign(argv, argv + argc);
  add_benchmark(app, context);
  add_train(app, context);
  add_comm(app, context);
  add_memory(app, context);
  add_compile(app, context);
  add_doctor(app, context);
  add_image(app, context);
  add_models(app, context);
  add_plan(app, context);
  add_trace(app, context);
  add_sweep(app, context);
  add_calibrate(app, context);
  add_completion(app, context);
  add_rank(app, context);
  return base::run_command_line(app, argc, argv, context.exit_code);
}

}  // namespace
}  // namespace ljtrain::ljperf

int main(int argc, char** argv) {
  return ljtrain::base::run_main("ljperf", [=] { return ljtrain::ljperf::run(argc, argv); });
}
