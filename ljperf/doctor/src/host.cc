#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/text.h"
#include "check.h"

namespace ljtrain::ljperf {
namespace {

// The namespaces that every kernel starts with (include/linux/proc_ns.h).
constexpr const char* kFirstIpc = "ipc:[4026531839]";
constexpr const char* kFirstPid = "pid:[4026531836]";

// "" where the link cannot be read.
std::string name_space(const Machine& machine, const std::string& kind) {
  std::error_code error;
  return std::filesystem::read_symlink(machine.at("/proc/self/ns/" + kind), error).string();
}

// The values of LOCAL_RANK among the processes that can be seen. Other variables are not looked at.
std::set<std::string> visible_ranks(const Machine& machine) {
  constexpr std::size_t kMostProcesses = 4096;
  std::set<std::string> ranks;
  std::size_t seen = 0;
  for (const std::string& name : machine.list("/proc")) {
    if (std::isdigit(static_cast<unsigned char>(name.front())) == 0 || ++seen > kMostProcesses) {
      continue;
    }
    std::string text = '\0' + machine.read("/proc/" + name + "/environ").value_or("");
    constexpr std::string_view kKey{"\0LOCAL_RANK=", 12};
    std::size_t at = text.find(kKey);
    if (at != std::string::npos) {
      ranks.insert(std::string(text.c_str() + at + kKey.size()));
    }
  }
  return ranks;
}

// "0", "0-1", "0,2": how many.
int count_of(const std::string& list) {
  int count = 0;
  std::size_t start = 0;
  while (start < list.size()) {
    std::size_t comma = std::min(list.find(',', start), list.size());
    std::string range = list.substr(start, comma - start);
    std::size_t dash = range.find('-');
    int first = std::atoi(range.c_str());
    count += dash == std::string::npos
                 ? 1
                 : std::max(0, std::atoi(range.c_str() + dash + 1) - first + 1);
    start = comma + 1;
  }
  return count;
}

}  // namespace

Finding check_host_numa(const Machine& machine) {
  int nodes = count_of(machine.read("/sys/devices/system/node/online").value_or("0"));
  bool balancing = machine.read("/proc/sys/kernel/numa_balancing").value_or("0") != "0";
  if (balancing && nodes > 1) {
    return warn(fmt::format("on, with {} NUMA nodes", nodes),
                "off: ranks are bound, and moving their pages stalls them",
                "on the host: sysctl kernel.numa_balancing=0");
  }
  return ok(
      fmt::format("{}, {} NUMA node{}", balancing ? "on" : "off", nodes, nodes == 1 ? "" : "s"));
}

Finding check_host_governor(const Machine& machine) {
  std::string folder = "/sys/devices/system/cpu/cpu0/cpufreq";
  std::optional<std::string> governor = machine.read(folder + "/scaling_governor");
  if (!governor.has_value()) {
    return skip("no frequency scaling to be seen");
  }
  std::string driver = machine.read(folder + "/scaling_driver").value_or("");
  std::string preference = machine.read(folder + "/energy_performance_preference").value_or("");
  // These drivers' powersave raises the clock under load, as other drivers' does not.
  bool scales_itself = driver == "intel_pstate" || driver.starts_with("amd-pstate");
  std::string found = base::printable(fmt::format("{} ({})", *governor, driver), 60);
  const char* fix = "on the host: cpupower frequency-set -g performance";
  if (*governor == "powersave" && !scales_itself) {
    return warn(found + ": the lowest frequency, always", "performance or schedutil", fix);
  }
  if (scales_itself && *governor == "powersave" && preference == "power") {
    return warn(found + ", preference power", "performance or balance_performance", fix);
  }
  return ok(found);
}

Finding check_host_ipc(const Machine& machine) {
  std::string ipc = name_space(machine, "ipc");
  std::string pid = name_space(machine, "pid");
  if (ipc.empty()) {
    return skip("/proc/self/ns cannot be read");
  }
  bool own_ipc = ipc != kFirstIpc;
  bool own_pid = pid != kFirstPid;
  std::string found = fmt::format("IPC {}, PID {}", own_ipc ? "of the container" : "of the host",
                                  own_pid ? "of the container" : "of the host");
  int ranks = machine.variable_number("LOCAL_WORLD_SIZE").value_or(1);
  if (!own_ipc || ranks < 2) {
    return ok(found);
  }
  std::set<std::string> here = visible_ranks(machine);
  if (own_pid && !here.empty() && std::cmp_less(here.size(), ranks)) {
    return warn(fmt::format("{}; {} of this host's {} ranks in sight", found, here.size(), ranks),
                "ranks of a host in one container, or --ipc=host",
                "start the containers with --ipc=host (and --pid=host), or all ranks in one; else "
                "they cannot share memory");
  }
  return ok(found);
}

Finding check_host_ptrace(const Machine& machine) {
  std::optional<std::int64_t> scope = machine.read_number("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope.has_value() || *scope < 2) {
    return ok(fmt::format("ptrace scope {}", scope.value_or(0)));
  }
  return warn(fmt::format("ptrace scope {}: py-spy and gdb cannot attach, ranks cannot read each "
                          "other's memory",
                          *scope),
              "0 or 1",
              *scope == 3 ? "on the host: set kernel.yama.ptrace_scope=1 in /etc/sysctl.d, reboot"
                          : "on the host: sysctl kernel.yama.ptrace_scope=1");
}

Finding check_host_clock(const Machine& machine) {
  // 2025-01-01: no build of this program is older.
  constexpr std::time_t kNotBefore = 1735689600;
  constexpr double kMostError = 0.5;
  if (machine.now < kNotBefore) {
    return fail("the clock lies in the past", "today's date",
                "set the clock: certificates fail, and files look newer than now");
  }
  std::optional<ClockState> clock = machine.clock ? machine.clock() : std::nullopt;
  if (!machine.several_hosts() || !clock.has_value()) {
    return ok(clock.has_value() ? "one host: skew does not matter" : "not readable here");
  }
  if (!clock->synchronised) {
    return warn("not synchronised, and the job spans hosts", "synchronised by NTP or PTP",
                "on the host: systemctl enable --now chronyd (or systemd-timesyncd)");
  }
  if (clock->error_s > kMostError) {
    return warn(fmt::format("off by about {:.1f} s", clock->error_s),
                fmt::format("within {} s", kMostError),
                "on the host: chronyc makestep; then look at its sources");
  }
  return ok("synchronised");
}

}  // namespace ljtrain::ljperf
