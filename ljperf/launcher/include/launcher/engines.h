// One door to the engines that start ranks from here (torchrun, srun, Ray), and what they have in
// common.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/engine_group.h"
#include "launcher/event_server.h"
#include "launcher/launch_options.h"
#include "launcher/rank_command.h"

namespace ljtrain::ljperf {

// Whether the whole command runs elsewhere, started by a batch script, a container or pods.
bool runs_elsewhere(const LaunchOptions& options, const base::Environment& environment);
// Whether an engine starts the ranks, with this process beside it.
bool runs_by_engine(const LaunchOptions& options, const base::Environment& environment);

// The options with what the surroundings say filled in: in a Slurm allocation its nodes. Throws
// UserError where an allocation is smaller than --nodes.
LaunchOptions settled(LaunchOptions options, const base::Environment& environment);

// The processes that start the ranks of this run. `gpus`: ranks use GPUs, one each. Throws UserError
// or RunError when the engine is not there, or a host is not.
std::vector<EngineProcess> engine_processes(const LaunchOptions& options,
                                            const RankCommand& command, const std::string& run,
                                            bool gpus);

// For people: on which host, or in which process, which command starts the ranks. Nothing is asked
// of any engine.
std::vector<std::pair<std::string, std::vector<std::string>>> engine_commands(
    const LaunchOptions& options, const RankCommand& command, const std::string& run, bool gpus);

// Where the ranks of a run report, and how they are told (LJTRAIN_COLLECTOR). With --node-rank other
// than 0 there is no server here: it is the first host's.
struct Collector {
  std::unique_ptr<EventServer> server;
  std::string address;  // HOST:PORT/RUN
};
Collector make_collector(const LaunchOptions& options, const std::string& run, int ranks,
                         const base::OrderedJson& reply);

}  // namespace ljtrain::ljperf
