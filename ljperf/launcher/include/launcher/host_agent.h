// `ljperf host-agent`: what the remote shell starts on each host. It reads what to run from its
// standard input, so that no argument passes through a remote shell, and ends all of it when that
// input ends: a launcher that dies leaves nothing behind on other hosts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/process.h"

namespace ljtrain::ljperf {

struct HostTask {
  std::vector<std::string> argv;
  base::Environment environment;            // beyond the host's own
  std::filesystem::path working_directory;  // where it exists there
};

// One line for the agent's standard input.
std::string to_line(const HostTask& task);
HostTask parse_task(const std::string& line);  // throws UserError

// The whole command. Returns the exit code of what it ran (128 + the signal that ended it).
int run_host_agent();

}  // namespace ljtrain::ljperf
