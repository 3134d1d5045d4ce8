// Limits of this process and its cgroup, from /proc and /sys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "doctor/machine.h"

namespace ljtrain::ljperf {

// The soft limit on a line of /proc/self/limits ("Max open files"); nullopt: unlimited, or unknown.
std::optional<std::uint64_t> process_limit(const Machine& machine, const std::string& name);

// Memory that this process's cgroup uses, without page cache that can be dropped; nullopt: unknown.
std::optional<std::uint64_t> cgroup_memory_used(const std::string& proc_cgroup,
                                                const std::string& mount);

// The tightest pids.max from this process's cgroup up to the root.
std::optional<std::uint64_t> cgroup_process_limit(const std::string& proc_cgroup,
                                                  const std::string& mount);

// Logical CPUs that this process may run on, from /proc/self/status; 0: unknown.
int allowed_cpus(const Machine& machine);

}  // namespace ljtrain::ljperf
