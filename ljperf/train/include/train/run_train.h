// The whole of `ljperf train`: a user's own script on the launchers of `ljperf benchmark`.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/launch_options.h"

namespace ljtrain::ljperf {

struct TrainOptions {
  std::vector<std::string> script;  // SCRIPT ARGS..., or -m MODULE ARGS...
  std::optional<int> ranks;         // of a host
  bool oversubscribe = false;
  std::filesystem::path python;
  std::filesystem::path output;  // the ranks' logs
  LaunchOptions launch;
  bool dry_run = false;
  bool json = false;
  std::vector<std::string> command_line;  // as typed
};

// Returns the exit code. Throws UserError for bad input (nothing was started) and RunError when it
// could not start.
int run_train(const TrainOptions& options);

}  // namespace ljtrain::ljperf
