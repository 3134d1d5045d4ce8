// `ljperf benchmark` with another launcher than local.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "benchmark/plan.h"
#include "launcher/event_server.h"
#include "launcher/rank_command.h"
#include "launcher/rank_group.h"

namespace ljtrain::ljperf {

// What every rank runs. `folder` is the run's.
RankCommand rank_command(const BenchmarkPlan& plan, const std::filesystem::path& folder);

// One run whose ranks an engine starts. `identities` takes where each rank was.
RankGroupResult run_by_engine(const BenchmarkPlan& plan, const std::filesystem::path& folder,
                              const base::OrderedJson& worker, const RankGroupObserver& observer,
                              const base::Interrupts& interrupts, int run,
                              std::vector<RankIdentity>& identities);

// With --node-rank other than 0: this host's ranks of each run; the record is the first host's.
int run_other_node(const BenchmarkPlan& plan);

// The whole benchmark in a batch job, a container or pods.
int benchmark_elsewhere(const BenchmarkOptions& options);

}  // namespace ljtrain::ljperf
