// Launchers that start the whole command somewhere else: a container, a batch job, pods. What they
// would start is made here as text or arguments; nothing is started.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "launcher/launch_options.h"
#include "launcher/slurm.h"

namespace ljtrain::ljperf {

struct ElsewhereJob {
  // ljperf's arguments as typed, without those that say where: the subcommand first.
  std::vector<std::string> arguments;
  std::vector<std::string> script;  // `ljperf train`: what follows them
  std::string name;                 // RFC 1123 label
  int ranks_per_node = 1;           // known here; 0: decided where it runs
  std::filesystem::path ljperf;     // this program, for hosts that share its file system
  std::filesystem::path folder;     // of scripts and logs (slurm)
  std::filesystem::path result;     // slurm: what the command prints goes there; empty: to the log
  std::filesystem::path working_directory;
  base::Environment environment;  // for the ranks, from --env
  std::set<std::string> secrets;  // those of its names whose values no manifest may hold
};

struct Launch {
  std::string form;               // command, script or manifest
  std::vector<std::string> argv;  // command, or what submits the script or manifest
  std::string text;               // the script or manifest
  std::string input;              // for argv's standard input
  std::vector<std::string> notes;
};

// Docker or podman: the notes' --ipc=host and --net=host, and no privilege beyond.
Launch docker_launch(const LaunchOptions& options, const ElsewhereJob& job);
// The manifest of --kind, for `kubectl apply -f -`.
Launch kubernetes_launch(const LaunchOptions& options, const ElsewhereJob& job);
Launch slurm_launch(const LaunchOptions& options, const ElsewhereJob& job);
BatchJob batch_job(const LaunchOptions& options, const ElsewhereJob& job);

Launch make_launch(const LaunchOptions& options, const ElsewhereJob& job);

// The launcher's own options, with a value each, for without_options().
const std::vector<std::string_view>& launch_option_names();

// As people read it, or with `json` as a document. It holds no value of job.environment but those
// that the caller found to be no secrets.
std::string describe(const Launch& launch, const LaunchOptions& options, bool json);

// Runs argv (docker, kubectl) with our output as its own. Returns the exit code.
int run_launch(const Launch& launch);

}  // namespace ljtrain::ljperf
