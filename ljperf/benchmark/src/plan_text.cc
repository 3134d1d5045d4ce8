#include <fmt/format.h>

#include "base/units.h"
#include "benchmark/plan.h"
#include "benchmark/report.h"
#include "benchmark/run_environment.h"
#include "benchmark/summary.h"
#include "cnp/record_file.h"
#include "launch.h"
#include "launcher/engines.h"
#include "launcher/shell.h"

namespace ljtrain::ljperf {

namespace {

std::string output_words(const BenchmarkPlan& plan) {
  return plan.options.output.empty() ? "a temporary folder, kept only when the run fails"
                                     : std::filesystem::absolute(plan.options.output).string();
}

// worker.json as it may be shown.
base::OrderedJson shown_worker(const BenchmarkPlan& plan) {
  base::OrderedJson worker = plan.worker;
  worker["training_arguments"] = redact_settings(worker["training_arguments"]);
  return worker;
}

// What the launcher's engine is started with; nothing for ranks that are started by us.
std::vector<std::pair<std::string, std::vector<std::string>>> commands_of(
    const BenchmarkPlan& plan) {
  if (!runs_by_engine(plan.options.launch, base::current_environment())) {
    return {};
  }
  return engine_commands(plan.options.launch, rank_command(plan, "RUN_FOLDER"), "RUN",
                         plan.on_gpus);
}

base::OrderedJson launcher_of(const BenchmarkPlan& plan) {
  base::OrderedJson commands = base::OrderedJson::array();
  for (const auto& [where, argv] : commands_of(plan)) {
    commands.push_back({{"where", where}, {"argv", argv}});
  }
  return {{"name", plan.options.launch.launcher},
          {"nodes", plan.nodes},
          {"ranks_per_node", plan.ranks_per_node},
          {"commands", commands}};
}

}  // namespace

base::OrderedJson to_json(const BenchmarkPlan& plan) {
  base::OrderedJson memory = base::OrderedJson::object();
  for (const auto& [name, bytes] : plan.proxy.memory.components()) {
    memory[std::string(name)] = static_cast<std::uint64_t>(bytes);
  }
  base::OrderedJson variables = base::OrderedJson::object();
  for (const auto& [name, value] : plan.base_stack) {
    variables[name] = nullptr;
    if (value.has_value()) {
      variables[name] = *value;
    }
  }
  return {{"schema_version", 1},
          {"dry_run", true},
          {"model", plan.model},
          {"engine", plan.engine},
          {"proxy", proxy_json(plan.proxy)},
          {"ranks", plan.ranks},
          {"launcher", launcher_of(plan)},
          {"threads_per_rank", plan.threads_per_rank},
          {"placement", plan.placement},
          {"steps_per_run", plan.steps_per_run},
          {"runs", plan.options.repeat},
          {"tokens_per_step", plan.tokens_per_step()},
          {"memory_estimate_bytes", memory},
          {"memory_limit_bytes", static_cast<std::uint64_t>(plan.memory_limit_bytes)},
          {"memory_limit_source", plan.memory_limit_source},
          {"records_folder", cnp::records_folder().string()},
          {"output_folder", output_words(plan)},
          {"environment", variables},
          {"python", plan.python.string()},
          {"versions", plan.preflight.value("versions", base::Json::object())},
          {"command", {plan.python.string(), "-m", "ljtrain.worker", "RUN_FOLDER/worker.json"}},
          {"worker", shown_worker(plan)},
          {"notes", plan.notes}};
}

std::string describe(const BenchmarkPlan& plan) {
  cnp::Record record = start_record(plan);
  std::string warmup = plan.fixed_warmup.has_value()
                           ? fmt::format("the first {} are warm-up", *plan.fixed_warmup)
                           : "warm-up is found from the step times";
  std::string text = fmt::format(
      "{}\n{}\n\nWould start {} run{} of {} steps ({}), {} tokens a step.\n", first_line(record),
      configuration_line(record), plan.options.repeat, plan.options.repeat > 1 ? "s" : "",
      plan.steps_per_run, warmup, plan.tokens_per_step());
  text += fmt::format("Memory a rank: about {} (a cautious estimate) of {} ({})\n",
                      base::format_bytes(plan.proxy.memory.total()),
                      base::format_bytes(plan.memory_limit_bytes), plan.memory_limit_source);
  bool by_engine = runs_by_engine(plan.options.launch, base::current_environment());
  for (const auto& [where, argv] : commands_of(plan)) {
    text += fmt::format("{}:\n  {}\n", where, shell_join(argv));
  }
  for (std::size_t rank = 0; !by_engine && rank < plan.placement.size(); ++rank) {
    text += fmt::format("Rank {} on cpus {}: {} -m ljtrain.worker RUN_FOLDER/worker.json\n", rank,
                        fmt::join(plan.placement[rank], ","), plan.python.string());
  }
  if (plan.engine == "deepspeed" && !plan.on_gpus) {
    text +=
        "DeepSpeed compiles its shared-memory operator once a machine: a minute before the first "
        "step.\n";
  }
  text += "Environment of the ranks:";
  for (const auto& [name, value] : plan.base_stack) {
    text += value.has_value() ? fmt::format(" {}={}", name, *value) : fmt::format(" (no {})", name);
  }
  text += fmt::format("\nRecord: {}\nLogs and the Trainer's output: {}\n",
                      cnp::records_folder().string(), output_words(plan));
  for (const std::string& note : plan.notes) {
    text += fmt::format("note: {}\n", note);
  }
  text += fmt::format("\nworker.json:\n{}\n", shown_worker(plan).dump(2));
  return text + "Dry run: nothing was started.";
}

}  // namespace ljtrain::ljperf
