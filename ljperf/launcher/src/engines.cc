#include "launcher/engines.h"

#include "base/errors.h"
#include "launcher/hosts.h"
#include "launcher/ray.h"
#include "launcher/shell.h"
#include "launcher/slurm.h"
#include "launcher/torchrun.h"

namespace ljtrain::ljperf {
namespace {

std::vector<EngineProcess> srun_processes(const LaunchOptions& options, const RankCommand& command,
                                          const std::string& run) {
  if (program_in_path("srun").empty()) {
    throw base::user_error("srun is not in PATH: this is no node of a Slurm cluster");
  }
  EngineProcess process;
  process.name = "srun";
  process.argv = srun_argv(options, command, run);
  process.ask_ranks_to_end = [run] { ask_step_to_end(run); };
  process.environment = base::current_environment();
  Rendezvous rendezvous = slurm_rendezvous(process.environment);
  for (const auto& [name, value] : command.environment) {
    process.environment[name] = value;
  }
  process.environment["MASTER_ADDR"] = rendezvous.address;
  process.environment["MASTER_PORT"] = std::to_string(rendezvous.port);
  if (!command.engine_log_folder.empty()) {
    process.log = command.engine_log_folder / "srun.log";
  }
  return {process};
}

// Our address as the ranks' hosts see it.
std::string advertised(const LaunchOptions& options) {
  if (options.launcher == "ray") {
    return kRayNodePlaceholder;
  }
  if (options.launcher == "slurm") {
    return address_towards(slurm_rendezvous(base::current_environment()).address);
  }
  for (const std::string& host : options.hosts) {
    if (!is_this_host(host)) {
      return address_towards(host);
    }
  }
  return options.hosts.empty() ? "127.0.0.1" : options.hosts.front();
}

}  // namespace

bool runs_elsewhere(const LaunchOptions& options, const base::Environment& environment) {
  return options.launcher == "docker" || options.launcher == "kubernetes" ||
         (options.launcher == "slurm" && !inside_allocation(environment));
}

bool runs_by_engine(const LaunchOptions& options, const base::Environment& environment) {
  return options.launcher == "torchrun" || options.launcher == "ray" ||
         (options.launcher == "slurm" && inside_allocation(environment));
}

LaunchOptions settled(LaunchOptions options, const base::Environment& environment) {
  if (options.launcher == "slurm" && inside_allocation(environment)) {
    int allocated = allocated_nodes(environment);
    if (options.node_count() > allocated) {
      throw base::user_error("--nodes {}: this Slurm allocation has {}", options.node_count(),
                             allocated);
    }
    if (!options.nodes.has_value() && options.hosts.empty()) {
      options.nodes = allocated;
    }
  }
  return options;
}

std::vector<EngineProcess> engine_processes(const LaunchOptions& options,
                                            const RankCommand& command, const std::string& run,
                                            bool gpus) {
  return options.launcher == "slurm" ? srun_processes(options, command, run)
         : options.launcher == "ray" ? ray_processes(options, command, gpus)
                                     : torchrun_processes(options, command, run);
}

std::vector<std::pair<std::string, std::vector<std::string>>> engine_commands(
    const LaunchOptions& options, const RankCommand& command, const std::string& run, bool gpus) {
  if (options.launcher == "slurm") {
    return {{"in the allocation", srun_argv(options, command, run)}};
  }
  if (options.launcher == "ray") {
    return {{fmt::format("reads {}", ray_task(options, command, gpus).dump()),
             {command.python.string(), "-m", "ljtrain.ray_launch"}}};
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> commands;
  for (int node = 0; node < options.node_count(); ++node) {
    if (options.node_rank.value_or(node) == node) {
      std::string where = options.hosts.empty()
                              ? "this host"
                              : fmt::format("host {}, by {} unless it is this one",
                                            options.hosts.at(static_cast<std::size_t>(node)),
                                            shell_join(reach_argv(options, command, node)));
      commands.emplace_back(where, torchrun_argv(options, command, run, node));
    }
  }
  return commands;
}

Collector make_collector(const LaunchOptions& options, const std::string& run, int ranks,
                         const base::OrderedJson& reply) {
  Collector collector;
  std::string host;
  int port = 0;
  if (options.node_rank.has_value() && options.node_count() > 1) {
    host = options.hosts.front();
    port = options.rendezvous_port + 1;
  } else {
    host = advertised(options);
  }
  if (options.node_rank.value_or(0) == 0) {
    bool here_only = host == "127.0.0.1";
    collector.server =
        std::make_unique<EventServer>(here_only ? host : "", port, run, ranks, reply);
    port = collector.server->port();
  }
  collector.address = fmt::format("{}:{}/{}", host, port, run);
  return collector;
}

}  // namespace ljtrain::ljperf
