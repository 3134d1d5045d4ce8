// Where and how ranks are started, as typed; the same for `ljperf benchmark` and `ljperf train`.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ljtrain::ljperf {

inline constexpr std::array<std::string_view, 6> kLaunchers{"local", "docker",     "torchrun",
                                                            "slurm", "kubernetes", "ray"};
inline constexpr std::array<std::string_view, 3> kKubernetesKinds{"trainjob", "pytorchjob", "job"};
// torchrun's own default.
inline constexpr int kRendezvousPort = 29400;

struct LaunchOptions {
  std::string launcher = "local";
  std::optional<int> nodes;        // hosts
  std::vector<std::string> hosts;  // their names or addresses
  std::optional<int> node_rank;    // torchrun: start only this host's part
  int rendezvous_port = kRendezvousPort;
  int max_restarts = 0;              // of the whole job: torchrun's workers, Slurm's requeues, pods
  std::string remote_shell = "ssh";  // what reaches a host: REMOTE_SHELL HOST COMMAND
  std::vector<std::string> launcher_options;  // handed to sbatch, srun, docker or torchrun as typed
  std::vector<std::string> environment;       // NAME or NAME=VALUE, for every rank
  std::string job_name;                       // empty: made from what runs
  std::string time_limit;                     // Slurm's notation, such as 1:30:00
  std::string image;                          // docker, kubernetes
  std::string kind = "trainjob";              // kubernetes
  std::string name_space = "default";         // kubernetes
  std::optional<int> gpus_per_node;           // kubernetes, docker, slurm; none: hosts
  std::optional<int> cpus_per_node;           // kubernetes, slurm, ray
  std::string memory_per_node;                // kubernetes, such as 64GiB

  int node_count() const;  // --nodes, else the number of hosts, else 1
};

// Checks what can be judged by the options alone. Throws UserError.
void check(const LaunchOptions& options);

// A host name (RFC 1123), IPv4 or IPv6 address: nothing that a shell or a program could take for
// something else.
bool is_host_name(std::string_view name);

// `text` as a name that Slurm and Kubernetes take (RFC 1123 label): at most 50 of a-z, 0-9 and '-'.
std::string job_name_from(std::string_view text);

// The command line without these options (each takes one value, as --name VALUE or --name=VALUE)
// and flags, and without what follows `end`.
std::vector<std::string> without_options(const std::vector<std::string>& command_line,
                                         const std::vector<std::string_view>& options,
                                         const std::vector<std::string_view>& flags);

// NAME or NAME=VALUE of --env as name and value; NAME alone takes the value from here. Throws
// UserError for a name that is none, or that is not set here.
std::vector<std::pair<std::string, std::string>> environment_of(const LaunchOptions& options);

}  // namespace ljtrain::ljperf
