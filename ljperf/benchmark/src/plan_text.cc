#include <fmt/format.h>

#include "base/units.h"
#include "benchmark/plan.h"
#include "benchmark/report.h"
#include "benchmark/summary.h"

namespace ljtrain::ljperf {

base::OrderedJson to_json(const BenchmarkPlan& plan) {
  base::OrderedJson memory = base::OrderedJson::object();
  for (const auto& [name, bytes] : plan.proxy.memory.components()) {
    memory[std::string(name)] = static_cast<std::uint64_t>(bytes);
  }
  return {{"schema_version", 1},
          {"dry_run", true},
          {"model", plan.model},
          {"engine", plan.engine},
          {"proxy", proxy_json(plan.proxy)},
          {"ranks", plan.ranks},
          {"threads_per_rank", plan.threads_per_rank},
          {"placement", plan.placement},
          {"steps_per_run", plan.steps_per_run},
          {"runs", plan.options.repeat},
          {"tokens_per_step", plan.tokens_per_step()},
          {"memory_estimate_bytes", memory},
          {"python", plan.python.string()},
          {"versions", plan.preflight.value("versions", base::Json::object())},
          {"command", {plan.python.string(), "-m", "ljtrain.worker", "RUN_FOLDER/worker.json"}},
          {"worker", plan.worker},
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
  text += fmt::format("Memory a rank: about {} (a cautious estimate)\n",
                      base::format_bytes(plan.proxy.memory.total()));
  for (std::size_t rank = 0; rank < plan.placement.size(); ++rank) {
    text += fmt::format(
        "Rank {}, on cpus {}: RANK={} OMP_NUM_THREADS={} {} -m ljtrain.worker "
        "RUN_FOLDER/worker.json\n",
        rank, fmt::join(plan.placement[rank], ","), rank, plan.threads_per_rank,
        plan.python.string());
  }
  for (const std::string& note : plan.notes) {
    text += fmt::format("note: {}\n", note);
  }
  text += fmt::format("\nworker.json:\n{}\n", plan.worker.dump(2));
  return text + "Dry run: nothing was started.";
}

}  // namespace ljtrain::ljperf
