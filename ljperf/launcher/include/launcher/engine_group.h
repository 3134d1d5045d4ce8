// A run whose ranks another engine starts (torchrun on each host, srun, a Ray driver): starts the
// engine's processes here, takes in what the ranks report, and ends all together, as rank_group.h
// does with ranks of its own.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "launcher/event_server.h"
#include "launcher/rank_group.h"

namespace ljtrain::ljperf {

struct EngineProcess {
  std::string name;  // for people: "torchrun on host b", "srun"
  std::vector<std::string> argv;
  base::Environment environment;
  std::string input;          // written to its standard input, which then stays open
  bool ends_input = false;    // or is closed
  std::filesystem::path log;  // takes what it prints; empty: it prints to ours
  // Asks the ranks to end, where the engine itself kills them when it is asked to.
  std::function<void()> ask_ranks_to_end;
};

struct EngineGroupPlan {
  std::vector<EngineProcess> processes;
  int ranks = 0;                     // that report; 0: nothing is collected, exit codes decide
  std::filesystem::path log_folder;  // rank-N.log of ranks on this host
  std::chrono::milliseconds start_timeout{std::chrono::minutes(10)};
  std::chrono::milliseconds step_timeout{std::chrono::minutes(5)};
  std::chrono::milliseconds grace{std::chrono::seconds(10)};  // an engine may take to end its ranks
};

// As run_ranks. `server`: where the ranks report; null when plan.ranks is 0. `exit_code`, where
// given, takes the first failing process's.
RankGroupResult run_engine(const EngineGroupPlan& plan, EventServer* server,
                           const RankGroupObserver& observer, const base::Interrupts& interrupts,
                           int* exit_code = nullptr);

}  // namespace ljtrain::ljperf
