// What every rank of a job runs, whichever launcher starts it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/process.h"

namespace ljtrain::ljperf {

struct RankCommand {
  std::filesystem::path ljperf;   // this program; at the same place on every host
  std::filesystem::path python;   // of the environment that trains; the same
  std::vector<std::string> argv;  // the rank's program, which `ljperf rank` becomes
  base::Environment environment;  // beyond what a host has
  int ranks_per_node = 1;
  std::filesystem::path log_folder;         // rank-N.log; empty: ranks print to the engine's output
  std::filesystem::path engine_log_folder;  // what the engine prints; empty: to ours
  std::filesystem::path working_directory;
};

// LJPERF rank {"argv": [...], "log": FOLDER}: one word, because torchrun takes a script's options
// for its own where they resemble them.
std::vector<std::string> rank_argv(const RankCommand& command);

// Where this program is.
std::filesystem::path this_program();

// The full path of a program in PATH; empty when there is none.
std::filesystem::path program_in_path(const std::string& name);

}  // namespace ljtrain::ljperf
