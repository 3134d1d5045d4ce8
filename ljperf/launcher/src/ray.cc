#include "launcher/ray.h"

#include <algorithm>

namespace ljtrain::ljperf {

base::OrderedJson ray_task(const LaunchOptions& options, const RankCommand& command, bool gpus) {
  int nodes = options.node_count();
  int ranks = command.ranks_per_node;
  int cpus = std::max(1, options.cpus_per_node.value_or(ranks) / ranks);
  base::OrderedJson bundle = {{"CPU", cpus * ranks}};
  if (gpus) {
    bundle["GPU"] = ranks;
  }
  return {{"schema_version", 1},
          {"nodes", nodes},
          {"ranks_per_node", ranks},
          {"cpus_per_rank", cpus},
          {"gpus_per_rank", gpus ? 1 : 0},
          {"bundles", std::vector<base::OrderedJson>(static_cast<std::size_t>(nodes), bundle)},
          // A host for each bundle; a single one wherever it fits.
          {"strategy", nodes > 1 ? "STRICT_SPREAD" : "STRICT_PACK"},
          {"argv", rank_argv(command)},
          {"environment", command.environment},
          {"working_directory", command.working_directory.string()}};
}

std::vector<EngineProcess> ray_processes(const LaunchOptions& options, const RankCommand& command,
                                         bool gpus) {
  EngineProcess process;
  process.name = "the Ray job";
  process.argv = {command.python.string(), "-m", "ljtrain.ray_launch"};
  process.environment = base::current_environment();
  process.environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0";  // the driver trains nothing
  process.input = ray_task(options, command, gpus).dump() + "\n";
  if (!command.engine_log_folder.empty()) {
    process.log = command.engine_log_folder / "ray.log";
  }
  return {process};
}

}  // namespace ljtrain::ljperf
