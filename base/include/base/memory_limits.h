// How much memory this process may use and does use, as the kernel has it: the host's, the control
// group's (versions 1 and 2) and its own pages. Bytes; what cannot be read is nullopt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ljtrain::base {

struct CgroupMemory {
  // The tightest limit on the way from the process's own group to the root; nullopt: none has one.
  std::optional<std::uint64_t> limit_bytes;
  // Of the group with the tightest limit (its own group where none has one), without the file pages
  // that the kernel would drop first.
  std::optional<std::uint64_t> used_bytes;
  // What may be added before a limit on the way up is reached: the least of them.
  std::optional<std::uint64_t> left_bytes;
  bool unified = false;  // version 2
};

// `proc_cgroup`: what /proc/self/cgroup says; `mount`: where control groups are (/sys/fs/cgroup).
// Reads memory.max, memory.current (v2) and memory.limit_in_bytes, memory.usage_in_bytes,
// hierarchical_memory_limit (v1), and memory.stat; Documentation/admin-guide/cgroup-v2.rst and
// cgroup-v1/memory.rst of Linux.
CgroupMemory cgroup_memory(const std::string& proc_cgroup, const std::string& mount);

struct MemoryLimits {
  std::optional<std::uint64_t> host_bytes;       // MemTotal
  std::optional<std::uint64_t> available_bytes;  // MemAvailable
  CgroupMemory cgroup;
  std::optional<std::uint64_t> resident_bytes;       // VmRSS
  std::optional<std::uint64_t> resident_peak_bytes;  // VmHWM, since the process began
};

// `root`: "" or a folder that holds proc/ and sys/ (tests).
MemoryLimits read_memory_limits(const std::string& root = "");

}  // namespace ljtrain::base
