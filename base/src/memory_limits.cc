#include "base/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/cgroup.h"

namespace ljtrain::base {
namespace {

using Bytes = std::optional<std::uint64_t>;

// v1 has no word for "no limit": it gives the largest multiple of the page size.
constexpr std::uint64_t kNoLimitFrom = std::uint64_t{1} << 60;
constexpr std::uint64_t kKibi = 1024;

std::string read_text(const std::string& file) {
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

Bytes number_in(const std::string& file) {
  std::ifstream stream(file);
  std::uint64_t value = 0;
  return stream >> value ? Bytes(value) : std::nullopt;
}

// "max" is no number, and neither is what is missing.
Bytes limit_in(const std::string& file) {
  Bytes value = number_in(file);
  return value.has_value() && *value < kNoLimitFrom ? value : std::nullopt;
}

// The number behind a word at the start of a line: "MemTotal:  123 kB", "inactive_file 456".
Bytes value_of(const std::string& text, std::string_view word) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    std::uint64_t value = 0;
    if (words >> first >> value && first == word) {
      return value;
    }
  }
  return std::nullopt;
}

Bytes kibibytes_of(const std::string& text, std::string_view word) {
  Bytes value = value_of(text, word);
  return value.has_value() ? Bytes(*value * kKibi) : std::nullopt;
}

Bytes least(const Bytes& a, const Bytes& b) {
  return a.has_value() && b.has_value() ? std::min(a, b) : (a.has_value() ? a : b);
}

struct Level {
  Bytes limit;
  Bytes used;
};

Level read_level(const std::string& folder, bool unified) {
  Level level;
  std::string stat = read_text(folder + "/memory.stat");
  level.limit = limit_in(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
  level.used = number_in(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
  if (level.used.has_value()) {
    Bytes cache = value_of(stat, unified ? "inactive_file" : "total_inactive_file");
    *level.used -= std::min(*level.used, cache.value_or(0));
  }
  if (!unified) {
    // Includes groups above what a container sees.
    Bytes above = value_of(stat, "hierarchical_memory_limit");
    level.limit = least(level.limit, above.value_or(kNoLimitFrom) < kNoLimitFrom ? above : Bytes());
  }
  return level;
}

}  // namespace

CgroupMemory cgroup_memory(const std::string& proc_cgroup, const std::string& mount) {
  CgroupMemory memory;
  std::optional<Cgroup> group = find_cgroup(proc_cgroup, mount, "memory");
  if (!group.has_value()) {
    return memory;
  }
  memory.unified = group->unified;
  for (const std::string& folder : group->folders()) {
    Level level = read_level(folder, group->unified);
    if (level.limit.has_value() && level.used.has_value()) {
      memory.left_bytes =
          least(memory.left_bytes, *level.limit - std::min(*level.limit, *level.used));
    }
    bool tighter = level.limit.has_value() &&
                   (!memory.limit_bytes.has_value() || *level.limit < *memory.limit_bytes);
    if (tighter) {
      memory.limit_bytes = level.limit;
    }
    if (tighter || !memory.used_bytes.has_value()) {
      memory.used_bytes = level.used;
    }
  }
  return memory;
}

MemoryLimits read_memory_limits(const std::string& root) {
  std::string status = read_text(root + "/proc/self/status");
  std::string host = read_text(root + "/proc/meminfo");
  return {.host_bytes = kibibytes_of(host, "MemTotal:"),
          .available_bytes = kibibytes_of(host, "MemAvailable:"),
          .cgroup = cgroup_memory(read_text(root + "/proc/self/cgroup"), root + "/sys/fs/cgroup"),
          .resident_bytes = kibibytes_of(status, "VmRSS:"),
          .resident_peak_bytes = kibibytes_of(status, "VmHWM:")};
}

}  // namespace ljtrain::base
