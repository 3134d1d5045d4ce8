#include "doctor/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <fstream>
#include <sstream>

namespace ljtrain::ljperf {
namespace {

constexpr std::size_t kMostText = std::size_t{16} << 20;
constexpr std::size_t kMostNames = 20000;
constexpr int kMostLinks = 8;

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                  : std::nullopt;
}

// Interfaces with an IPv4 route or an IPv6 address of their own.
std::vector<std::string> addressed(const Machine& machine) {
  std::vector<std::string> names;
  std::istringstream routes(machine.read("/proc/net/route").value_or(""));
  for (std::string line; std::getline(routes, line);) {
    names.push_back(line.substr(0, line.find_first_of("\t ")));
  }
  std::istringstream addresses(machine.read("/proc/net/if_inet6").value_or(""));
  for (std::string line; std::getline(addresses, line);) {
    names.push_back(line.substr(line.find_last_of(' ') + 1));
  }
  return names;
}

}  // namespace

std::filesystem::path Machine::at(std::string_view path) const {
  return root / std::filesystem::path(path).relative_path();
}

bool Machine::exists(std::string_view path) const {
  std::error_code error;
  return std::filesystem::exists(at(path), error);
}

std::optional<std::string> Machine::read(std::string_view path) const {
  std::ifstream stream(at(path), std::ios::binary);
  std::string text;
  std::array<char, 16384> buffer{};
  do {
    stream.read(buffer.data(), buffer.size());
    text.append(buffer.data(), static_cast<std::size_t>(stream.gcount()));
  } while (stream && text.size() < kMostText);
  if (text.empty() && !stream.eof()) {
    return std::nullopt;
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  return text;
}

std::optional<std::int64_t> Machine::read_number(std::string_view path) const {
  std::optional<std::string> text = read(path);
  return text.has_value() ? parse_number(*text) : std::nullopt;
}

std::vector<std::string> Machine::list(std::string_view path) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entries(at(path), error);
  for (; !error && entries != std::filesystem::directory_iterator() && names.size() < kMostNames;
       entries.increment(error)) {
    names.push_back(entries->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string Machine::follow(std::string path) const {
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    std::filesystem::path target = std::filesystem::read_symlink(at(path), error);
    if (error) {
      break;
    }
    path = target.is_absolute()
               ? target.string()
               : (std::filesystem::path(path).parent_path() / target).lexically_normal().string();
  }
  return path;
}

std::string Machine::variable(const std::string& name) const {
  auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

std::optional<int> Machine::variable_number(const std::string& name) const {
  std::optional<std::int64_t> value = parse_number(variable(name));
  constexpr std::int64_t kMost = 1'000'000'000;
  return value.has_value() && *value >= -kMost && *value <= kMost
             ? std::optional(static_cast<int>(*value))
             : std::nullopt;
}

std::vector<Interface> Machine::interfaces() const {
  constexpr unsigned kUp = 1;  // IFF_UP
  std::vector<std::string> with_address = addressed(*this);
  std::vector<Interface> all;
  for (const std::string& name : list("/sys/class/net")) {
    std::string folder = "/sys/class/net/" + name;
    std::optional<std::string> text = read(folder + "/flags");
    if (!text.has_value()) {
      continue;  // bonding_masters
    }
    unsigned flags = 0;
    std::string_view digits = std::string_view(*text).substr(text->starts_with("0x") ? 2 : 0);
    std::from_chars(digits.data(), digits.data() + digits.size(), flags, 16);
    std::string state = read(folder + "/operstate").value_or("unknown");
    Interface entry;
    entry.name = name;
    entry.index = static_cast<int>(read_number(folder + "/ifindex").value_or(0));
    entry.up = (flags & kUp) != 0 && (state == "up" || state == "unknown");
    entry.has_address = name == "lo" || std::find(with_address.begin(), with_address.end(), name) !=
                                            with_address.end();
    all.push_back(std::move(entry));
  }
  std::sort(all.begin(), all.end(),
            [](const Interface& a, const Interface& b) { return a.index < b.index; });
  return all;
}

bool Machine::in_container() const {
  return exists("/.dockerenv") || exists("/run/.containerenv") || has_variable("container") ||
         has_variable("KUBERNETES_SERVICE_HOST");
}

bool Machine::several_hosts() const {
  for (const char* nodes : {"NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "GROUP_WORLD_SIZE"}) {
    if (variable_number(nodes).value_or(1) > 1) {
      return true;
    }
  }
  std::optional<int> world = variable_number("WORLD_SIZE");
  std::optional<int> local = variable_number("LOCAL_WORLD_SIZE");
  return !hosts.empty() || (world.has_value() && local.has_value() && *world > *local);
}

bool Machine::has_rdma() const { return !list("/sys/class/infiniband").empty(); }

}  // namespace ljtrain::ljperf
