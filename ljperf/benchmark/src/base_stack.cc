#include "base_stack.h"

#include <string_view>

#include "base/errors.h"

namespace ljtrain::ljperf {

std::map<std::string, std::optional<std::string>> base_stack_variables(
    const BenchmarkPlan& plan, const base::Environment& environment,
    std::vector<std::string>& notes) {
  auto value_of = [&](const std::string& name) -> std::string {
    auto found = environment.find(name);
    return found == environment.end() ? "" : found->second;
  };
  std::string threads = std::to_string(plan.threads_per_rank);
  std::map<std::string, std::optional<std::string>> variables{
      {"OMP_NUM_THREADS", threads},
      {"TORCH_DEVICE_BACKEND_AUTOLOAD", "0"},
      {"HF_HUB_OFFLINE", "1"},
      {"TOKENIZERS_PARALLELISM", "false"},
      {"PYTHONUNBUFFERED", "1"},
      // The packages that are installed, not a folder of the same name where the command was typed.
      {"PYTHONSAFEPATH", "1"}};
  std::string wanted_threads = value_of("OMP_NUM_THREADS");
  if (!wanted_threads.empty() && wanted_threads != threads && !plan.on_gpus) {
    notes.push_back(fmt::format("OMP_NUM_THREADS={} is replaced by the {} of a rank's cores",
                                wanted_threads, threads));
  }
  for (const char* ours : {"LJTRAIN_ACCL", "CHECKPOINT_OPTIMIZATION"}) {
    if (environment.contains(ours)) {
      variables[ours] = std::nullopt;
      notes.push_back(
          fmt::format("{} is set, but this release holds the base stack only: no effect", ours));
    }
  }
  // accelerate takes its whole configuration from such variables, past the TrainingArguments:
  // another engine, another precision, compilation.
  for (const auto& [name, value] : environment) {
    for (std::string_view prefix : {"ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_"}) {
      if (name.starts_with(prefix)) {
        variables[name] = std::nullopt;
        notes.push_back(
            fmt::format("{} is not passed on: ljperf's options decide what trains", name));
      }
    }
  }
  if (!value_of("LD_PRELOAD").empty()) {
    notes.push_back(
        fmt::format("LD_PRELOAD={} is not part of the base stack", value_of("LD_PRELOAD")));
  }
  // All ranks are on this host: a host name that does not resolve, or resolves elsewhere, must not
  // matter.
  if (value_of("GLOO_SOCKET_IFNAME").empty()) {
    variables["GLOO_SOCKET_IFNAME"] = "lo";
  }
  return variables;
}

}  // namespace ljtrain::ljperf
