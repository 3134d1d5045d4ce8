#include "base_stack.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kAcclVariable = "LJTRAIN_ACCL";
constexpr const char* kCompileVariable = "LJTRAIN_COMPILE";
constexpr const char* kRecomputeVariable = "CHECKPOINT_OPTIMIZATION";
constexpr const char* kLimitVariable = "LJTRAIN_MEMORY_LIMIT";

// As ljtrain.integrations reads it.
bool is_yes(std::string value) {
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::tolower(c); });
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

bool holds(const std::vector<std::string>& parts, std::string_view part) {
  return std::ranges::find(parts, part) != parts.end();
}

bool is_asked_for(std::string_view part, const char* variable, const BenchmarkOptions& options,
                  const base::Environment& environment) {
  auto found = environment.find(variable);
  return holds(options.with, part) ||
         (found != environment.end() && is_yes(found->second) && !holds(options.without, part));
}

}  // namespace

bool is_accl_asked_for(const BenchmarkOptions& options, const base::Environment& environment) {
  return is_asked_for("accl", kAcclVariable, options, environment);
}

bool is_compile_asked_for(const BenchmarkOptions& options, const base::Environment& environment) {
  return options.stock_compile == "none" &&
         is_asked_for("compile", kCompileVariable, options, environment);
}

bool is_recompute_asked_for(const BenchmarkOptions& options, const base::Environment& environment) {
  return is_asked_for("recompute", kRecomputeVariable, options, environment);
}

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
  if (plan.accl) {
    variables[kAcclVariable] = "1";
    variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1";  // what puts ACCL behind the name gloo
  } else if (environment.contains(kAcclVariable)) {
    variables[kAcclVariable] = std::nullopt;
  }
  // With autoload on, whatever for, torch_compile=True is stock PyTorch's unless asked otherwise.
  variables[kCompileVariable] = plan.compile ? "1" : "0";
  if (plan.compile) {
    variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1";
  }
  if (plan.recompute) {
    variables[kRecomputeVariable] = "true";
    variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1";
  } else if (environment.contains(kRecomputeVariable)) {
    variables[kRecomputeVariable] = std::nullopt;
  }
  if (!plan.options.memory_limit.empty()) {
    variables[kLimitVariable] = plan.options.memory_limit;
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
  variables.merge(allocator_variables(plan.allocator, environment));
  if (!value_of("LD_PRELOAD").empty()) {
    notes.push_back(
        fmt::format("LD_PRELOAD={} is not part of the base stack", value_of("LD_PRELOAD")));
  }
  // Where all ranks are on this host, a host name that does not resolve, or resolves elsewhere, must not
  // matter.
  // On several hosts each rank finds the interface that leads to the others (`ljperf rank`).
  if (value_of("GLOO_SOCKET_IFNAME").empty() && plan.nodes == 1) {
    variables["GLOO_SOCKET_IFNAME"] = "lo";
  }
  return variables;
}

}  // namespace ljtrain::ljperf
