// What the machine offers to a run: cores it may use, memory, accelerators.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace ljtrain::ljperf {

struct Core {
  std::vector<int> cpus;  // logical CPUs of this core that we may use, ascending
  int numa_node = 0;
};

struct Gpu {
  std::string name;                // as NVML gives it
  std::uint64_t memory_bytes = 0;  // total
};

struct Hardware {
  std::string cpu_model;
  std::vector<Core> cores;  // those in this process's affinity mask, in hwloc's order
  int numa_nodes = 1;
  std::uint64_t memory_bytes = 0;  // installed
  std::optional<std::uint64_t>
      cgroup_limit_bytes;  // the tightest limit on the way to the root, v1 or v2
  // Cores' worth of time that the cgroup grants, where it limits it.
  std::optional<double> cpu_quota;
  std::vector<std::string>
      cpu_flags;  // those that kernels choose by (avx2, avx512_bf16, amx_bf16, ...)
  std::vector<Gpu> gpus;
  std::string gpu_note;  // why there are none, or the driver's version

  // Memory that all ranks together may use: the tighter of the two above.
  std::uint64_t usable_memory_bytes() const;
  // Ranks of one core each that can really run at once: the cores, or the cgroup's quota if that is
  // less.
  int usable_cores() const;
  base::OrderedJson to_json() const;
};

// Reads hwloc, /proc, the cgroup and, when its library can be loaded, NVML. Never throws for what
// is missing.
Hardware detect_hardware();

// The memory limit of this process's cgroup, v1 or v2: the tightest from it up to the root; nullopt
// when there is none. `proc_cgroup` is the content of /proc/self/cgroup, `mount` where cgroups are
// mounted (/sys/fs/cgroup).
std::optional<std::uint64_t> cgroup_memory_limit(const std::string& proc_cgroup,
                                                 const std::string& mount);
// The CPU time that this process's cgroup grants, in cores: the tightest quota from it up to the
// root; nullopt when there is none. Arguments as above.
std::optional<double> cgroup_cpu_quota(const std::string& proc_cgroup, const std::string& mount);
// How often the kernel killed a process of this cgroup for memory; nullopt when it does not say.
std::optional<std::uint64_t> cgroup_oom_kills();

// The logical CPUs of each rank: whole cores, neighbours together, as many for each rank as there
// are for all. With more ranks than cores (allowed by `oversubscribe`) ranks share cores in turn.
// Throws UserError otherwise.
std::vector<std::vector<int>> place_ranks(const std::vector<Core>& cores, int ranks,
                                          bool oversubscribe);

}  // namespace ljtrain::ljperf
