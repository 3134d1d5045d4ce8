#include <unistd.h>

#include "base/errors.h"
#include "launcher/elsewhere.h"
#include "launcher/rank_command.h"

namespace ljtrain::ljperf {
namespace {

// A stack of a thread, in bytes: what PyTorch's images ask for.
constexpr int kStackBytes = 67108864;

// docker reads `--volume a:b` at its colons: a path with one needs the long form, whose commas are
// its own. What neither can say is refused.
std::string mount_of(const std::filesystem::path& folder) {
  std::string path = folder.string();
  if (path.find_first_of(",\"\n") != std::string::npos) {
    throw base::user_error(
        "{}: a container engine cannot mount a folder whose name holds a comma, a quote or a line "
        "break; start ljperf in another one",
        path);
  }
  return fmt::format("type=bind,source={},target={}", path, path);
}

}  // namespace

Launch docker_launch(const LaunchOptions& options, const ElsewhereJob& job) {
  bool podman = program_in_path("docker").empty() && !program_in_path("podman").empty();
  Launch launch;
  launch.form = "command";
  launch.argv = {podman ? "podman" : "docker",
                 "run",
                 "--rm",
                 "--init",  // passes signals on and takes in orphans
                 fmt::format("--name={}", job.name),
                 "--ipc=host",  // ranks share memory; a container's own /dev/shm has 64 MiB
                 "--net=host",  // the network interfaces that collectives choose from
                 "--cap-drop=ALL",
                 "--security-opt=no-new-privileges",
                 fmt::format("--user={}:{}", ::getuid(), ::getgid()),
                 "--ulimit=memlock=-1:-1",  // pinned memory
                 fmt::format("--ulimit=stack={}", kStackBytes)};
  if (podman) {
    launch.argv.emplace_back("--userns=keep-id");
  }
  if (options.gpus_per_node.has_value()) {
    launch.argv.push_back(fmt::format("--gpus={}", *options.gpus_per_node));
  }
  std::filesystem::path records = job.folder;
  launch.argv.push_back(fmt::format("--mount={}", mount_of(job.working_directory)));
  launch.argv.push_back(fmt::format("--workdir={}", job.working_directory.string()));
  if (!records.empty()) {
    launch.argv.push_back(fmt::format("--mount={}", mount_of(records)));
    launch.argv.push_back(fmt::format("--env=LJTRAIN_RECORDS={}", records.string()));
  }
  launch.argv.emplace_back("--env=HOME=/tmp");  // the image has no home for this user
  // By name: the values go through the engine's environment and are seen in no list of processes.
  for (const auto& [name, value] : job.environment) {
    launch.argv.push_back(fmt::format("--env={}", name));
  }
  launch.argv.insert(launch.argv.end(), options.launcher_options.begin(),
                     options.launcher_options.end());
  launch.argv.insert(launch.argv.end(), {options.image, "ljperf"});
  launch.argv.insert(launch.argv.end(), job.arguments.begin(), job.arguments.end());
  launch.argv.insert(launch.argv.end(), job.script.begin(), job.script.end());
  launch.notes = {
      fmt::format("only {} is visible inside: files elsewhere need --launcher-option=--mount=...",
                  job.working_directory.string())};
  return launch;
}

}  // namespace ljtrain::ljperf
