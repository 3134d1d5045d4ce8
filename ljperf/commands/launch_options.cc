#include "launch_options.h"

namespace ljtrain::ljperf {

void add_launch_options(CLI::App& command, LaunchOptions& options) {
  auto add = [&command](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("Launcher");
  };
  add("--launcher", options.launcher,
      "What starts the ranks: local, docker, torchrun, slurm, kubernetes or ray")
      ->capture_default_str()
      ->check(CLI::IsMember(std::vector<std::string>(kLaunchers.begin(), kLaunchers.end())));
  add("--nodes", options.nodes, "Hosts; --ranks are a host's (default 1, or as many as --hosts)");
  add("--hosts", options.hosts, "Their names, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false);
  add("--node-rank", options.node_rank,
      "torchrun: start only the part of this host, counted from 0 (default: all, by ssh)");
  add("--rendezvous-port", options.rendezvous_port,
      "torchrun: port on the first host; the ranks report to the one after it")
      ->capture_default_str();
  add("--remote-shell", options.remote_shell, "torchrun: what reaches a host")
      ->capture_default_str();
  add("--max-restarts", options.max_restarts,
      "torchrun, slurm, kubernetes: how often a job that failed is started again")
      ->capture_default_str();
  add("--env", options.environment, "NAME or NAME=VALUE for every rank, on every host")
      ->allow_extra_args(false);
  add("--job-name", options.job_name, "slurm, kubernetes, docker (default: from what runs)");
  add("--time-limit", options.time_limit, "slurm: minutes, H:MM:SS or D-H");
  add("--image", options.image, "docker, kubernetes: image with ljperf in it");
  add("--kind", options.kind, "kubernetes: trainjob, pytorchjob or job")
      ->capture_default_str()
      ->check(CLI::IsMember(
          std::vector<std::string>(kKubernetesKinds.begin(), kKubernetesKinds.end())));
  add("--namespace", options.name_space, "kubernetes")->capture_default_str();
  add("--gpus-per-node", options.gpus_per_node, "docker, kubernetes, slurm: GPUs of a host or pod");
  add("--cpus-per-node", options.cpus_per_node, "kubernetes, slurm, ray: cores of a host or pod");
  add("--memory-per-node", options.memory_per_node, "kubernetes: memory of a pod, such as 64GiB");
  add("--launcher-option", options.launcher_options,
      "An option handed on to torchrun, sbatch and srun, or docker run, as it is")
      ->allow_extra_args(false);
}

}  // namespace ljtrain::ljperf
