#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/cgroup.h"
#include "base/text.h"
#include "base/units.h"
#include "check.h"
#include "launcher/hardware.h"
#include "process_limits.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

std::string cgroups_of(const Machine& machine) {
  return machine.read("/proc/self/cgroup").value_or("");
}

std::optional<std::uint64_t> number_in(const std::string& file) {
  std::ifstream stream(file);
  std::uint64_t value = 0;
  return stream >> value ? std::optional(value) : std::nullopt;
}

// The value behind a word in a file of "word number" lines.
std::uint64_t value_of(const std::string& file, const std::string& wanted) {
  std::ifstream stream(file);
  std::string word;
  std::uint64_t value = 0;
  while (stream >> word >> value) {
    if (word == wanted) {
      return value;
    }
  }
  return 0;
}

int local_ranks(const Machine& machine) {
  return std::clamp(machine.variable_number("LOCAL_WORLD_SIZE")
                        .value_or(static_cast<int>(machine.gpus.gpus.size())),
                    1, 1024);
}

}  // namespace

std::optional<std::uint64_t> process_limit(const Machine& machine, const std::string& name) {
  std::istringstream lines(machine.read("/proc/self/limits").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + " ")) {
      std::istringstream words(line.substr(name.size()));
      std::uint64_t value = 0;
      return words >> value ? std::optional(value) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> cgroup_memory_used(const std::string& proc_cgroup,
                                                const std::string& mount) {
  std::optional<base::Cgroup> group = base::find_cgroup(proc_cgroup, mount, "memory");
  if (!group.has_value()) {
    return std::nullopt;
  }
  for (const std::string& folder : group->folders()) {
    std::optional<std::uint64_t> used =
        number_in(folder + (group->unified ? "/memory.current" : "/memory.usage_in_bytes"));
    if (used.has_value()) {
      std::uint64_t cache = value_of(folder + "/memory.stat",
                                     group->unified ? "inactive_file" : "total_inactive_file");
      return *used - std::min(*used, cache);
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> cgroup_process_limit(const std::string& proc_cgroup,
                                                  const std::string& mount) {
  std::optional<std::uint64_t> tightest;
  std::optional<base::Cgroup> group = base::find_cgroup(proc_cgroup, mount, "pids");
  if (group.has_value()) {
    for (const std::string& folder : group->folders()) {
      std::optional<std::uint64_t> limit = number_in(folder + "/pids.max");
      tightest = limit.has_value() ? std::min(*limit, tightest.value_or(*limit)) : tightest;
    }
  }
  return tightest;
}

int allowed_cpus(const Machine& machine) {
  std::istringstream lines(machine.read("/proc/self/status").value_or(""));
  constexpr std::string_view kKey = "Cpus_allowed_list:";
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(kKey)) {
      continue;
    }
    int count = 0;
    std::istringstream ranges(line.substr(kKey.size()));
    for (std::string range; std::getline(ranges, range, ',');) {
      int first = std::atoi(range.c_str());
      std::size_t dash = range.find('-');
      int last = dash == std::string::npos ? first : std::atoi(range.c_str() + dash + 1);
      count += std::max(0, last - first + 1);
    }
    return count;
  }
  return 0;
}

Finding check_limits_files(const Machine& machine) {
  std::optional<std::uint64_t> limit = process_limit(machine, "Max open files");
  std::uint64_t needed = std::max<std::uint64_t>(1024, 512 * local_ranks(machine));
  if (limit.has_value() && *limit < needed) {
    std::string expected = fmt::format("at least {}", needed);
    const char* fix =
        "ulimit -n 65536; docker run --ulimit nofile=65536; LimitNOFILE for slurmd or kubelet";
    std::string found = fmt::format("ulimit -n: {}", *limit);
    return *limit < 256 ? fail(found, expected, fix) : warn(found, expected, fix);
  }
  return ok(limit.has_value() ? fmt::format("{}", *limit) : "unlimited");
}

Finding check_limits_processes(const Machine& machine) {
  std::optional<std::uint64_t> user = process_limit(machine, "Max processes");
  std::optional<std::uint64_t> group =
      cgroup_process_limit(cgroups_of(machine), machine.at("/sys/fs/cgroup").string());
  std::uint64_t needed = 512 * static_cast<std::uint64_t>(local_ranks(machine) + 1);
  std::string expected = fmt::format("at least {} (a rank starts hundreds of threads)", needed);
  if (group.has_value() && *group < needed) {
    return fail(fmt::format("pids.max: {}", *group), expected,
                "docker run --pids-limit -1; in Kubernetes podPidsLimit of the kubelet");
  }
  if (user.has_value() && *user < needed) {
    return fail(fmt::format("ulimit -u: {}", *user), expected,
                "ulimit -u unlimited, or nproc in /etc/security/limits.conf");
  }
  std::uint64_t least = std::min(user.value_or(UINT64_MAX), group.value_or(UINT64_MAX));
  return ok(least == UINT64_MAX ? "unlimited" : fmt::format("{}", least));
}

Finding check_limits_stack(const Machine& machine) {
  std::optional<std::uint64_t> limit = process_limit(machine, "Max stack size");
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;
  if (limit.has_value() && *limit < kLeast) {
    return fail(fmt::format("ulimit -s: {}", base::format_bytes(static_cast<double>(*limit))),
                "8 MiB: threads take their stack from it", "ulimit -s 8192");
  }
  return ok(limit.has_value() ? base::format_bytes(static_cast<double>(*limit)) : "unlimited");
}

Finding check_limits_address_space(const Machine& machine) {
  std::optional<std::uint64_t> limit = process_limit(machine, "Max address space");
  if (!limit.has_value()) {
    return ok("unlimited");
  }
  std::string found = fmt::format("ulimit -v: {}", base::format_bytes(static_cast<double>(*limit)));
  // CUDA reserves address space for all memory of host and devices.
  return machine.gpus.gpus.empty()
             ? warn(found, "unlimited", "ulimit -v unlimited")
             : fail(found + ", and CUDA reserves more than a machine has memory", "unlimited",
                    "ulimit -v unlimited; in Slurm VSizeFactor=0");
}

Finding check_limits_file_size(const Machine& machine) {
  std::optional<std::uint64_t> limit = process_limit(machine, "Max file size");
  constexpr std::uint64_t kLeast = 64 * kGiB;
  if (limit.has_value() && *limit < kLeast) {
    return warn(fmt::format("ulimit -f: {}", base::format_bytes(static_cast<double>(*limit))),
                "unlimited: checkpoints are large", "ulimit -f unlimited");
  }
  return ok(limit.has_value() ? base::format_bytes(static_cast<double>(*limit)) : "unlimited");
}

Finding check_limits_cpu_time(const Machine& machine) {
  std::optional<std::uint64_t> limit = process_limit(machine, "Max cpu time");
  if (limit.has_value()) {
    return warn(fmt::format("ulimit -t: {} s, then the kernel kills the process", *limit),
                "unlimited", "ulimit -t unlimited; login nodes often limit it: use a compute node");
  }
  return ok("unlimited");
}

Finding check_limits_cpu_quota(const Machine& machine) {
  std::optional<double> quota =
      cgroup_cpu_quota(cgroups_of(machine), machine.at("/sys/fs/cgroup").string());
  int cpus = allowed_cpus(machine);
  if (!quota.has_value() || cpus == 0 || *quota >= cpus) {
    return ok(fmt::format("{} CPUs, no quota below them", cpus));
  }
  std::string found = fmt::format("{:.1f} of {} CPUs by quota", *quota, cpus);
  std::optional<int> threads = machine.variable_number("OMP_NUM_THREADS");
  if (!threads.has_value() || *threads > *quota) {
    return warn(fmt::format("{}, {}", found,
                            threads.has_value() ? fmt::format("OMP_NUM_THREADS={}", *threads)
                                                : "OMP_NUM_THREADS unset"),
                "no more threads than the quota lets run: the rest is throttled",
                fmt::format("export OMP_NUM_THREADS={}, or raise the CPU limit",
                            std::max(1, static_cast<int>(*quota))));
  }
  return ok(found);
}

}  // namespace ljtrain::ljperf
