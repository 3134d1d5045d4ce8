// ljperf compile: which graphs a model's layers become under torch_compile=True.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "base/errors.h"
#include "base/json.h"
#include "base/process.h"
#include "benchmark/plan.h"
#include "commands.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ljperf compile --explain llama3-8b                 graphs, breaks with their lines, what each costs
  ljperf compile --explain mixtral-8x7b --seq 1024 --json
  ljperf compile --explain deepspeed --config my-model/config.json

One step in one process: the graphs are the same under every engine. Exit codes: 0 done, 1 the model failed, 2 bad
input.
)";
constexpr auto kPatience = std::chrono::minutes(30);

struct CompileOptions {
  std::string explain;
  bool json = false;
  BenchmarkOptions benchmark;
};

// The last line of a traceback says what happened.
std::string last_line(const std::string& text) {
  std::size_t end = text.find_last_not_of(" \n");
  if (end == std::string::npos) {
    return "no reason given";
  }
  std::size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin));
}

int explain(CompileOptions options) {
  options.benchmark.model = options.explain;
  if (options.benchmark.config.empty() && options.explain.find('/') == std::string::npos) {
    options.benchmark.model = "ddp/" + options.explain;
  }
  options.benchmark.ranks = 1;
  options.benchmark.with = {"compile"};
  check(options.benchmark);
  BenchmarkPlan plan = make_plan(options.benchmark);
  base::SpawnOptions python;
  python.argv = {plan.python.string(), "-m", "ljtrain.compile_explain"};
  python.environment = plan.environment();
  base::Captured result = base::run_captured(python, plan.worker.dump(), kPatience);
  base::Json answer = base::Json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  if (result.timed_out) {
    throw base::run_error("compiling {} has not ended within {} minutes", plan.model,
                          kPatience.count());
  }
  if (!result.status.ok() || !answer.is_object()) {
    std::string reason = last_line(result.errors);
    if (result.status.code == 2) {
      throw base::user_error("{}", reason);
    }
    throw base::run_error("{}: {}", plan.model, reason);
  }
  if (options.json) {
    answer["model"] = plan.model;
    answer.erase("text");
    fmt::print("{}\n", answer.dump(2));
  } else {
    fmt::print("{}: {} layers, hidden size {}{}, {} tokens\n{}\n", plan.model,
               plan.proxy.config.layer_count(), plan.proxy.config.hidden_size,
               plan.proxy.is_proxy ? " (a proxy)" : "", plan.tokens_per_step(),
               answer.value("text", ""));
  }
  return 0;
}

}  // namespace

void add_compile(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("compile", "Show the graphs of a model's layers, and what breaks them");
  auto options = std::make_shared<CompileOptions>();
  command->add_option("--explain", options->explain, "A model of the catalogue")
      ->required()
      ->group("Model");
  command->add_option("--config", options->benchmark.config, "A config.json instead")
      ->group("Model");
  command
      ->add_option("--scale", options->benchmark.scale, "auto, full or 1/D, as `ljperf benchmark`")
      ->group("Model")
      ->capture_default_str();
  command->add_option("--seq", options->benchmark.seq, "Tokens a sequence")->group("Model");
  command->add_option("--micro-batch", options->benchmark.micro_batch, "Sequences a step")
      ->group("Model");
  command->add_option("--set", options->benchmark.set, "KEY=VALUE for TrainingArguments")
      ->group("Model");
  command->add_option("--python", options->benchmark.python, "Python of the environment to use")
      ->group("Model");
  command->add_flag("--json", options->json, "One JSON document on standard output")
      ->group("Output");
  command->footer(kExamples);
  command->callback([&context, options] {
    options->benchmark.command_line = context.command_line;
    context.exit_code = explain(*options);
  });
}

}  // namespace ljtrain::ljperf
