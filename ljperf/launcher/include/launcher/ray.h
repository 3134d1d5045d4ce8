// Ray as the engine: a placement group with one bundle a host, in each of them one actor a rank
// (python/ljtrain/ray_launch.py).
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "launcher/engine_group.h"
#include "launcher/launch_options.h"
#include "launcher/rank_command.h"

namespace ljtrain::ljperf {

// In the environment of ranks: the address of the host where the driver runs.
inline constexpr const char* kRayNodePlaceholder = "{ray_node}";

// What the driver reads from its standard input.
base::OrderedJson ray_task(const LaunchOptions& options, const RankCommand& command, bool gpus);

std::vector<EngineProcess> ray_processes(const LaunchOptions& options, const RankCommand& command,
                                         bool gpus);

}  // namespace ljtrain::ljperf
