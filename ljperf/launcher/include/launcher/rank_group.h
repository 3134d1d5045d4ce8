// Runs the ranks of one training on this host and watches over them: whatever happens, all of them
// end together, nothing is left behind, and the reason is one sentence.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/interrupts.h"
#include "base/json.h"
#include "base/process.h"

namespace ljtrain::ljperf {

struct RankGroupPlan {
  std::vector<std::string> argv;  // of every rank
  base::Environment environment;  // of every rank; RANK, MASTER_PORT and the like are added
  std::vector<std::vector<int>> placement;  // logical CPUs of each rank; its size is the world size
  std::filesystem::path log_folder;         // rank-N.log: what the rank prints
  std::chrono::milliseconds start_timeout{
      std::chrono::minutes(10)};                                    // until every rank's first step
  std::chrono::milliseconds step_timeout{std::chrono::minutes(5)};  // between two steps of a rank
  // Whether the ranks send events. Those of a user's own script do not: no step is waited for, and
  // exit codes decide.
  bool reports = true;
  std::chrono::milliseconds grace{300};  // a rank may take to end by itself when asked to
};

enum class Outcome { kCompleted, kFailed, kBadInput, kInterrupted };

struct RankGroupResult {
  Outcome outcome = Outcome::kCompleted;
  int failing_rank = -1;                // -1: no rank in particular
  std::string sentence;                 // what happened; empty when completed
  std::string traceback;                // the rank's own, when it sent one
  std::vector<std::string> last_lines;  // of the failing rank's log
};

// Called from run_ranks on its own thread.
struct RankGroupObserver {
  std::function<void(int rank, const base::Json& event)> on_event;
  std::function<void()> on_tick;  // about ten times a second
};

// Starts the ranks, passes on their events, and returns once all have ended. SIGINT and SIGTERM end
// the run (kInterrupted). A rank that crashes, is killed, reports an error or makes no step in time
// ends all others. Throws UserError or RunError only when nothing could be started.
RankGroupResult run_ranks(const RankGroupPlan& plan, const RankGroupObserver& observer,
                          const base::Interrupts& interrupts);

// The last lines of a log file that say something, at most `count`, each at most 200 characters.
std::vector<std::string> last_lines_of(const std::filesystem::path& log, std::size_t count);

// The shared memory that DeepSpeed's CPU backend leaves behind: of this user, this address and
// port, and these ranks only. Returns the files removed.
std::vector<std::filesystem::path> remove_deepspeed_shared_memory(const std::string& address,
                                                                  int port, int ranks);

}  // namespace ljtrain::ljperf
