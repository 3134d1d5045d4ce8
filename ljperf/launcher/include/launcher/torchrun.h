// torchrun (torch.distributed.run, elastic) as the engine: one agent a host, which starts the ranks
// there and restarts all of them when one fails (--max-restarts).
#pragma once

#include <string>
#include <vector>

#include "launcher/engine_group.h"
#include "launcher/launch_options.h"
#include "launcher/rank_command.h"

namespace ljtrain::ljperf {

// The command of host `node` of options.hosts. `run`: a name that the hosts of this run share.
std::vector<std::string> torchrun_argv(const LaunchOptions& options, const RankCommand& command,
                                       const std::string& run, int node);

// How host `node` is reached from here: REMOTE_SHELL HOST, and what it runs there. Empty with
// --node-rank, and for a host that is this one.
std::vector<std::string> reach_argv(const LaunchOptions& options, const RankCommand& command,
                                    int node);

// The processes to start here: every host's, or with --node-rank this host's own. Throws RunError
// for a host that does not resolve, UserError for a remote shell that is not there.
std::vector<EngineProcess> torchrun_processes(const LaunchOptions& options,
                                              const RankCommand& command, const std::string& run);

}  // namespace ljtrain::ljperf
