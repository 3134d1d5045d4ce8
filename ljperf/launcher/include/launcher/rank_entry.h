// `ljperf rank`: what torchrun, srun or a Ray actor starts in the place of a rank's program. It
// learns its rank in the launcher's words, binds itself to its cores, reports to the run that waits
// for it, and then becomes the program.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"

namespace ljtrain::ljperf {

// Set by the run that collects: HOST:PORT/RUN.
inline constexpr const char* kCollectorVariable = "LJTRAIN_COLLECTOR";
// In a rank's argv: the file with what the collector sent as "worker".
inline constexpr const char* kWorkerPlaceholder = "{worker}";

struct RankPlace {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  bool by_slurm = false;  // Slurm has bound it already
};

// The rank's place, from RANK, WORLD_SIZE, ... or Slurm's variables. Throws UserError when neither
// are there.
RankPlace place_from(const base::Environment& environment);

// The local ranks of the node `node` in Slurm's notation of tasks a node: "2(x3),1" is 2, 2, 2, 1.
std::optional<int> tasks_on_node(const std::string& text, int node);

// Becomes the program that `task` names (rank_argv() writes it): returns only by throwing.
[[noreturn]] void become_rank(const std::string& task);

}  // namespace ljtrain::ljperf
