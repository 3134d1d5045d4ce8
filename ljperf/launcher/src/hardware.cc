#include "launcher/hardware.h"

#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>

#include "base/cgroup.h"
#include "base/memory_limits.h"
#include "nvml.h"

namespace ljtrain::ljperf {
namespace {

std::string read_text(const std::string& file) {
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};

std::vector<int> cpus_of(hwloc_const_cpuset_t set) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
    cpus.push_back(cpu);
  }
  return cpus;
}

// Fills cores and NUMA nodes from hwloc, restricted to the CPUs this process is bound to.
void detect_cores(Hardware& hardware) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return;
  }
  std::unique_ptr<hwloc_topology, TopologyDeleter> topology(raw);
  if (hwloc_topology_load(raw) != 0) {
    return;
  }
  std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> bound(hwloc_bitmap_alloc(),
                                                                      &hwloc_bitmap_free);
  if (hwloc_get_cpubind(raw, bound.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(bound.get(), hwloc_topology_get_allowed_cpuset(raw));
  }
  hardware.numa_nodes = std::max(1, hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_NUMANODE));
  hwloc_obj_type_t type =
      hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_by_type(raw, type, core)) != nullptr) {
    hwloc_bitmap_t usable = hwloc_bitmap_dup(core->cpuset);
    hwloc_bitmap_and(usable, usable, bound.get());
    if (hwloc_bitmap_iszero(usable) == 0) {
      int node = core->nodeset != nullptr ? hwloc_bitmap_first(core->nodeset) : 0;
      hardware.cores.push_back({cpus_of(usable), std::max(0, node)});
    }
    hwloc_bitmap_free(usable);
  }
}

void detect_cpu(Hardware& hardware) {
  static constexpr std::array<std::string_view, 12> kFlags{
      "sse4_2",      "avx2",     "fma",      "avx512f", "avx512bw", "avx512_vnni",
      "avx512_bf16", "amx_bf16", "amx_tile", "asimd",   "sve",      "bf16"};
  std::ifstream stream("/proc/cpuinfo");
  std::string line;
  while (std::getline(stream, line) && !line.empty()) {
    std::size_t colon = line.find(": ");
    if (colon == std::string::npos) {
      continue;
    }
    std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) {
      hardware.cpu_model = value;
    } else if (line.starts_with("flags") || line.starts_with("Features")) {
      std::istringstream flags(value);
      for (std::string flag; flags >> flag;) {
        if (std::find(kFlags.begin(), kFlags.end(), flag) != kFlags.end()) {
          hardware.cpu_flags.push_back(flag);
        }
      }
    }
  }
}

// Cores' worth of CPU time of one cgroup folder: v2 has "quota period" or "max period" in one file,
// v1 two files and -1 for no limit.
std::optional<double> read_quota(const std::string& folder) {
  std::ifstream unified(folder + "/cpu.max");
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  bool read = false;
  if (unified) {
    read = !(unified >> quota >> period).fail();
  } else {
    read = !(quota_file >> quota).fail() && !(period_file >> period).fail();
  }
  return read && quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

}  // namespace

std::uint64_t Hardware::usable_memory_bytes() const {
  return std::min(memory_bytes, cgroup_limit_bytes.value_or(memory_bytes));
}

int Hardware::usable_cores() const {
  auto count = std::max(1, static_cast<int>(cores.size()));
  return cpu_quota.has_value() ? std::clamp(static_cast<int>(*cpu_quota), 1, count) : count;
}

base::OrderedJson Hardware::to_json() const {
  base::OrderedJson gpu_list = base::OrderedJson::array();
  for (const Gpu& gpu : gpus) {
    gpu_list.push_back({{"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}});
  }
  base::OrderedJson quota = nullptr;
  if (cpu_quota.has_value()) {
    quota = *cpu_quota;
  }
  base::OrderedJson limit = nullptr;
  if (cgroup_limit_bytes.has_value()) {
    limit = *cgroup_limit_bytes;
  }
  return {{"cpu_model", cpu_model},      {"cores", cores.size()},  {"cpu_quota", quota},
          {"numa_nodes", numa_nodes},    {"cpu_flags", cpu_flags}, {"memory_bytes", memory_bytes},
          {"cgroup_limit_bytes", limit}, {"gpus", gpu_list},       {"gpu_note", gpu_note}};
}

Hardware detect_hardware() {
  Hardware hardware;
  detect_cores(hardware);
  detect_cpu(hardware);
  hardware.memory_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                          static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  hardware.cgroup_limit_bytes =
      cgroup_memory_limit(read_text("/proc/self/cgroup"), "/sys/fs/cgroup");
  hardware.cpu_quota = cgroup_cpu_quota(read_text("/proc/self/cgroup"), "/sys/fs/cgroup");
  NvmlInventory inventory = read_nvml();
  hardware.gpus = std::move(inventory.gpus);
  hardware.gpu_note = std::move(inventory.note);
  return hardware;
}

std::optional<std::uint64_t> cgroup_memory_limit(const std::string& proc_cgroup,
                                                 const std::string& mount) {
  return base::cgroup_memory(proc_cgroup, mount).limit_bytes;
}

std::optional<double> cgroup_cpu_quota(const std::string& proc_cgroup, const std::string& mount) {
  std::optional<double> tightest;
  std::optional<base::Cgroup> group = base::find_cgroup(proc_cgroup, mount, "cpu");
  if (group.has_value()) {
    for (const std::string& folder : group->folders()) {
      std::optional<double> quota = read_quota(folder);
      tightest = quota.has_value() ? std::min(*quota, tightest.value_or(*quota)) : tightest;
    }
  }
  return tightest;
}

std::optional<std::uint64_t> cgroup_oom_kills() {
  std::uint64_t kills = 0;
  bool known = false;
  auto add_from = [&](const std::string& file) {
    std::ifstream stream(file);
    std::string word;
    std::uint64_t value = 0;
    while (stream >> word >> value) {
      if (word == "oom_kill") {
        kills += value;
        known = true;
      }
    }
  };
  std::optional<base::Cgroup> group =
      base::find_cgroup(read_text("/proc/self/cgroup"), "/sys/fs/cgroup", "memory");
  if (group.has_value()) {
    add_from(group->folders().front() +
             (group->unified ? "/memory.events" : "/memory.oom_control"));
  }
  add_from("/proc/vmstat");
  return known ? std::optional(kills) : std::nullopt;
}

}  // namespace ljtrain::ljperf
