#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "base/text.h"
#include "base/units.h"
#include "check.h"
#include "drivers.h"
#include "launcher/hardware.h"
#include "process_limits.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

std::string bytes(std::uint64_t count) { return base::format_bytes(static_cast<double>(count)); }

// A line of /proc/meminfo, in its own unit (bytes for kB).
std::optional<std::uint64_t> memory_info(const Machine& machine, const std::string& key) {
  std::istringstream lines(machine.read("/proc/meminfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ":")) {
      std::istringstream words(line.substr(key.size() + 1));
      std::uint64_t value = 0;
      std::string unit;
      words >> value >> unit;
      return value * (unit == "kB" ? 1024 : 1);
    }
  }
  return std::nullopt;
}

struct SharedMemory {
  std::string type;  // tmpfs
  std::uint64_t size = 0;
  bool read_only = false;
};

// The last mount on /dev/shm in /proc/self/mountinfo.
std::optional<SharedMemory> shared_memory(const Machine& machine) {
  std::optional<SharedMemory> found;
  std::istringstream lines(machine.read("/proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    std::string point;
    std::string options;
    for (int i = 0; i < 4; ++i) {
      words >> word;
    }
    words >> point >> options;
    if (point != "/dev/shm") {
      continue;
    }
    while (words >> word && word != "-") {
    }
    SharedMemory memory;
    std::string source;
    std::string super;
    words >> memory.type >> source >> super;
    memory.read_only = options.starts_with("ro,") || options == "ro";
    // Without a size= tmpfs grows to half of the memory.
    memory.size = memory_info(machine, "MemTotal").value_or(0) / 2;
    std::size_t at = super.find("size=");
    if (at != std::string::npos) {
      std::string size = super.substr(at + 5, super.find(',', at) - at - 5);
      std::uint64_t unit = size.ends_with('k')   ? 1024
                           : size.ends_with('m') ? kMiB
                           : size.ends_with('g') ? kGiB
                                                 : 1;
      memory.size = std::strtoull(size.c_str(), nullptr, 10) * unit;
    }
    found = memory;
  }
  return found;
}

// Bytes of the files in /dev/shm and the largest of them.
std::pair<std::uint64_t, std::string> used_shared_memory(const Machine& machine) {
  std::uint64_t used = 0;
  std::uint64_t most = 0;
  std::string largest;
  for (const std::string& name : machine.list("/dev/shm")) {
    std::error_code error;
    std::uint64_t size = std::filesystem::file_size(machine.at("/dev/shm/" + name), error);
    if (!error) {
      used += size;
      largest = size > most ? name : largest;
      most = std::max(size, most);
    }
  }
  return {used, largest};
}

}  // namespace

Finding check_memory_shm(const Machine& machine) {
  std::optional<SharedMemory> memory = shared_memory(machine);
  std::uint64_t needed = machine.task == Purpose::kTraining ? kGiB : kGiB / 4;
  std::string expected = fmt::format("at least {}", bytes(needed));
  const char* fix =
      "docker run --ipc=host (or --shm-size=16g); in Kubernetes an emptyDir with medium: Memory on "
      "/dev/shm and a sizeLimit above what is used";
  if (!memory.has_value()) {
    return machine.exists("/dev/shm") && !machine.exists("/proc/self/mountinfo")
               ? skip("/proc/self/mountinfo cannot be read")
               : fail("/dev/shm is not mounted", expected, fix);
  }
  if (memory->type != "tmpfs") {
    return warn(fmt::format("/dev/shm is on {}: slow, and a pod over its limit is evicted",
                            base::printable(memory->type)),
                "tmpfs", fix);
  }
  if (memory->read_only) {
    return fail("/dev/shm is read-only", "writable", fix);
  }
  if (memory->size <= 64 * kMiB) {
    return fail(fmt::format("/dev/shm has {}, a container's default", bytes(memory->size)),
                expected, fix);
  }
  if (memory->size < needed) {
    return warn(fmt::format("/dev/shm has {}", bytes(memory->size)), expected, fix);
  }
  std::optional<std::uint64_t> limit = cgroup_memory_limit(
      machine.read("/proc/self/cgroup").value_or(""), machine.at("/sys/fs/cgroup").string());
  return ok(fmt::format("{}{}", bytes(memory->size),
                        limit.has_value() && memory->size > *limit
                            ? ", counted against the memory limit of " + bytes(*limit)
                            : ""),
            expected);
}

Finding check_memory_shm_free(const Machine& machine) {
  std::optional<SharedMemory> memory = shared_memory(machine);
  if (!memory.has_value() || memory->size == 0) {
    return skip("/dev/shm is not mounted");
  }
  auto [used, largest] = used_shared_memory(machine);
  std::string found = fmt::format("{} of {} used", bytes(used), bytes(memory->size));
  constexpr std::uint64_t kPercentFull = 90;
  if (used * 100 > memory->size * kPercentFull) {
    return warn(fmt::format("{}, most by {}", found, base::printable(largest, 60)),
                "room for the ranks' buffers", "remove what dead runs left (fuser -v /dev/shm/*)");
  }
  return ok(found);
}

Finding check_memory_locked(const Machine& machine) {
  if (!machine.has_rdma()) {
    return ok("no RDMA device that needs it");
  }
  std::optional<std::uint64_t> limit = process_limit(machine, "Max locked memory");
  constexpr std::uint64_t kEnough = 64 * kGiB;
  if (limit.has_value() && *limit < kEnough) {
    return fail(fmt::format("ulimit -l: {}, with RDMA devices", bytes(*limit)), "unlimited",
                "docker run --ulimit memlock=-1; memlock in /etc/security/limits.conf; "
                "LimitMEMLOCK=infinity for slurmd");
  }
  return ok(limit.has_value() ? bytes(*limit) : "unlimited", "unlimited");
}

Finding check_memory_cgroup(const Machine& machine) {
  std::string groups = machine.read("/proc/self/cgroup").value_or("");
  std::string mount = machine.at("/sys/fs/cgroup").string();
  std::optional<std::uint64_t> limit = cgroup_memory_limit(groups, mount);
  std::optional<std::uint64_t> total = memory_info(machine, "MemTotal");
  if (!limit.has_value() || (total.has_value() && *limit >= *total)) {
    return ok(total.has_value() ? fmt::format("{}, no limit below it", bytes(*total)) : "no limit");
  }
  std::optional<std::uint64_t> used = cgroup_memory_used(groups, mount);
  std::string found = fmt::format("limit {}{}", bytes(*limit),
                                  used.has_value() ? fmt::format(", {} in use", bytes(*used)) : "");
  constexpr std::uint64_t kPercentFull = 95;
  if (used.has_value() && *used * 100 > *limit * kPercentFull) {
    return warn(found, "memory to spare",
                "raise the container's memory limit, or end what else runs in it");
  }
  constexpr std::uint64_t kLeast = 2 * kGiB;
  if (*limit < kLeast) {
    return warn(found, fmt::format("at least {}", bytes(kLeast)),
                "raise the container's memory limit: PyTorch alone takes 1 GiB a rank");
  }
  return ok(found);
}

Finding check_memory_huge_pages(const Machine& machine) {
  std::optional<std::string> text = machine.read("/sys/kernel/mm/transparent_hugepage/enabled");
  if (!text.has_value()) {
    return skip("the kernel has no transparent huge pages");
  }
  if (text->find("[never]") != std::string::npos) {
    return warn("transparent huge pages: never", "madvise or always",
                "on the host: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  }
  return ok(text->find("[always]") != std::string::npos ? "always" : "madvise");
}

Finding check_memory_reserved(const Machine& machine) {
  std::optional<std::uint64_t> free_pages = memory_info(machine, "HugePages_Free");
  std::optional<std::uint64_t> size = memory_info(machine, "Hugepagesize");
  std::optional<std::uint64_t> total = memory_info(machine, "MemTotal");
  if (!free_pages.has_value() || !size.has_value() || !total.has_value()) {
    return skip("/proc/meminfo does not say");
  }
  std::uint64_t idle = *free_pages * *size;
  if (idle * 4 > *total) {
    return warn(
        fmt::format("{} of {} reserved as huge pages and unused", bytes(idle), bytes(*total)),
        "less than a quarter: PyTorch takes none of them", "on the host: sysctl vm.nr_hugepages=0");
  }
  return ok(idle == 0 ? "none reserved" : bytes(idle) + " reserved and unused");
}

}  // namespace ljtrain::ljperf
