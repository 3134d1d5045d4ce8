// ljperf sweep: measures what steps take under every number of recomputed layers; ljperf calibrate:
// fits the memory model to that.
#include <memory>

#include "commands.h"
#include "sweep/run_sweep.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kSweepExamples = R"(Examples:
  ljperf sweep --dry-run                          what would be measured
  ljperf sweep --output points.jsonl              44 configurations, every number of recomputed layers each
  ljperf sweep --families llama,mixtral --engines zero3,ddp --ranks 2 --count 10
  ljperf sweep --families llama --compile --count 4
  ljperf calibrate points.jsonl                   what a fit to them is worth

Small models of the families are trained on this host, each in one process for all numbers of layers. Run again, it goes on
where it ended. Exit codes: 0 done, 1 a configuration failed (its line says why), 2 bad input, 130 interrupted.
)";

constexpr const char* kCalibrateExamples = R"(Examples:
  ljperf calibrate points.jsonl                   errors before and after, on configurations held out of the fit
  ljperf calibrate points.jsonl more.jsonl --output my-host.json
  LJTRAIN_CALIBRATION=my-host.json ljperf plan --model llama3-8b --device host
)";

template <typename T>
void add_list(CLI::App& command, const char* name, std::vector<T>& values, const char* about) {
  command.add_option(name, values, about)->delimiter(',')->group("Configurations");
}

}  // namespace

void add_sweep(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("sweep", "Measure memory under every number of recomputed layers");
  auto options = std::make_shared<SweepOptions>();
  SweepGrid& grid = options->grid;
  add_list(*command, "--families", grid.families, "Of the models, as in llama,mixtral");
  add_list(*command, "--engines", grid.engines, "zero0 to zero3, ddp, fsdp");
  add_list(*command, "--hidden", grid.hidden, "Hidden sizes, multiples of 32");
  add_list(*command, "--layers", grid.layers, "Numbers of layers");
  add_list(*command, "--vocabulary", grid.vocabulary, "Vocabulary sizes");
  add_list(*command, "--seq", grid.seq, "Tokens a sequence");
  add_list(*command, "--micro-batch", grid.micro_batch, "Sequences a rank handles at once");
  add_list(*command, "--ranks", grid.ranks, "Ranks");
  add_list(*command, "--lora", grid.lora, "Ranks of adapters (needs peft), 0: none");
  command->add_flag("--compile", grid.compile, "torch_compile=True as ljtrain does it")
      ->group("Configurations");
  command->add_option("--count", grid.count, "Configurations to draw")
      ->group("Configurations")
      ->capture_default_str();
  command->add_option("--seed", grid.seed, "Of the draw")
      ->group("Configurations")
      ->capture_default_str();
  command->add_option("--output", options->output, "File of the answers, one line a configuration")
      ->capture_default_str();
  command->add_flag("--gloo", options->gloo, "Collectives through Gloo instead of ACCL");
  command->add_option("--python", options->python, "Python of the environment with PyTorch");
  command->add_flag("--dry-run", options->dry_run, "Say what would be measured");
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->footer(kSweepExamples);
  command->callback([&context, options] { context.exit_code = run_sweep(*options); });
}

void add_calibrate(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("calibrate", "Fit the memory model to measured points, with error bars");
  auto options = std::make_shared<CalibrateOptions>();
  command->add_option("points", options->points, "Files of `ljperf sweep` (default: points.jsonl)");
  command->add_option("--output", options->output, "File to write the fit to");
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->footer(kCalibrateExamples);
  command->callback([&context, options] { context.exit_code = run_calibrate(*options); });
}

}  // namespace ljtrain::ljperf
