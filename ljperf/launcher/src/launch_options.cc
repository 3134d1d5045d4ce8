#include "launcher/launch_options.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <set>

#include "base/errors.h"
#include "base/text.h"
#include "base/units.h"

namespace ljtrain::ljperf {
namespace {

constexpr int kMostNodes = 4096;
constexpr int kMostRestarts = 1000;
constexpr int kMostResources = 4096;  // GPUs, or cores, of a host
constexpr std::size_t kLongestHost = 253;
constexpr std::size_t kLongestLabel = 63;
constexpr std::size_t kLongestJobName = 50;  // leaves room for what Kubernetes appends to a pod's

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_label(std::string_view label) {
  return !label.empty() && label.size() <= kLongestLabel && is_alphanumeric(label.front()) &&
         is_alphanumeric(label.back()) && std::all_of(label.begin(), label.end(), [](char c) {
           return is_alphanumeric(c) || c == '-' || c == '_';
         });
}

// Refuses an option that the chosen launcher would ignore.
void only_for(const LaunchOptions& options, bool given, const char* option,
              std::initializer_list<std::string_view> launchers) {
  bool served = std::find(launchers.begin(), launchers.end(), options.launcher) != launchers.end();
  if (given && !served) {
    throw base::user_error("{}: has no effect with --launcher {}; it is for {}", option,
                           options.launcher, fmt::join(launchers, ", "));
  }
}

void check_hosts(const LaunchOptions& options) {
  std::set<std::string> seen;
  for (const std::string& host : options.hosts) {
    if (!is_host_name(host)) {
      throw base::user_error("--hosts: `{}` is no host name or address", base::printable(host));
    }
    if (!seen.insert(host).second) {
      throw base::user_error("--hosts: {} is named twice; --ranks says how many ranks a host has",
                             host);
    }
  }
  if (options.nodes.has_value() && !options.hosts.empty() &&
      static_cast<std::size_t>(*options.nodes) != options.hosts.size()) {
    throw base::user_error("--nodes {} and --hosts with {} names: give one of them, or as many",
                           *options.nodes, options.hosts.size());
  }
}

void check_torchrun(const LaunchOptions& options) {
  int nodes = options.node_count();
  if (nodes > 1 && options.hosts.empty()) {
    throw base::user_error(
        "--nodes {}: torchrun must know where; name the hosts with --hosts a,b,...", nodes);
  }
  if (options.node_rank.has_value() && (*options.node_rank < 0 || *options.node_rank >= nodes)) {
    throw base::user_error("--node-rank {}: must be between 0 and {}", *options.node_rank,
                           nodes - 1);
  }
}

void check_slurm(const LaunchOptions& options) {
  static const std::regex kTime(R"((\d+-)?\d+(:\d\d){0,2})");
  if (!options.time_limit.empty() && !std::regex_match(options.time_limit, kTime)) {
    throw base::user_error("--time-limit {}: write minutes, H:MM:SS or D-H, as Slurm does",
                           base::printable(options.time_limit));
  }
}

// What a host has to have, where the launcher is told.
void check_resources(const LaunchOptions& options) {
  auto check_count = [](const char* option, std::optional<int> value) {
    if (value.has_value() && (*value < 1 || *value > kMostResources)) {
      throw base::user_error("{} {}: must be between 1 and {}", option, *value, kMostResources);
    }
  };
  check_count("--gpus-per-node", options.gpus_per_node);
  check_count("--cpus-per-node", options.cpus_per_node);
  if (!options.memory_per_node.empty()) {
    try {
      base::parse_bytes(options.memory_per_node);
    } catch (const base::UserError& error) {
      throw base::user_error("--memory-per-node: {}", error.what());
    }
  }
  only_for(options, options.gpus_per_node.has_value(), "--gpus-per-node",
           {"docker", "kubernetes", "slurm"});
  only_for(options, options.cpus_per_node.has_value(), "--cpus-per-node",
           {"kubernetes", "slurm", "ray"});
  only_for(options, !options.memory_per_node.empty(), "--memory-per-node", {"kubernetes"});
}

// Options with a default, given when they differ from it.
void check_defaulted(const LaunchOptions& options) {
  const LaunchOptions usual;
  only_for(options, options.rendezvous_port != usual.rendezvous_port, "--rendezvous-port",
           {"torchrun", "kubernetes"});
  only_for(options, options.remote_shell != usual.remote_shell, "--remote-shell", {"torchrun"});
  only_for(options, options.kind != usual.kind, "--kind", {"kubernetes"});
  only_for(options, options.name_space != usual.name_space, "--namespace", {"kubernetes"});
  bool plain = is_label(options.name_space) &&
               std::none_of(options.name_space.begin(), options.name_space.end(),
                            [](char c) { return c == '_' || (c >= 'A' && c <= 'Z'); });
  if (!plain) {
    throw base::user_error("--namespace {}: at most {} of a-z, 0-9 and '-'",
                           base::printable(options.name_space), kLongestLabel);
  }
}

void check_container(const LaunchOptions& options) {
  static const std::regex kImage(R"([A-Za-z0-9][A-Za-z0-9._/:@-]{0,500})");
  if (options.image.empty()) {
    throw base::user_error(
        "--image is missing: --launcher {} runs an image; `ljperf image address` prints those of "
        "releases",
        options.launcher);
  }
  if (!std::regex_match(options.image, kImage)) {
    throw base::user_error("--image {}: is no image reference", base::printable(options.image));
  }
}

}  // namespace

int LaunchOptions::node_count() const {
  return nodes.value_or(hosts.empty() ? 1 : static_cast<int>(hosts.size()));
}

bool is_host_name(std::string_view name) {
  std::string text(name);
  in6_addr ipv6{};
  if (::inet_pton(AF_INET6, text.c_str(), &ipv6) == 1 && text.size() == name.size()) {
    return true;
  }
  if (name.empty() || name.size() > kLongestHost) {
    return false;
  }
  while (true) {
    std::size_t dot = name.find('.');
    if (!is_label(name.substr(0, dot))) {
      return false;
    }
    if (dot == std::string_view::npos) {
      return true;
    }
    name.remove_prefix(dot + 1);
  }
}

std::string job_name_from(std::string_view text) {
  std::string name;
  for (char c : text) {
    bool upper = c >= 'A' && c <= 'Z';
    char kept = upper ? static_cast<char>(c - 'A' + 'a') : is_alphanumeric(c) ? c : '-';
    if (kept != '-' || (!name.empty() && name.back() != '-')) {
      name += kept;
    }
  }
  name = name.substr(0, kLongestJobName);
  while (!name.empty() && name.back() == '-') {
    name.pop_back();
  }
  bool letter_first = !name.empty() && name.front() >= 'a' && name.front() <= 'z';
  return letter_first ? name : name.empty() ? "ljperf" : job_name_from("ljperf-" + name);
}

std::vector<std::string> without_options(const std::vector<std::string>& command_line,
                                         const std::vector<std::string_view>& options,
                                         const std::vector<std::string_view>& flags) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < command_line.size(); ++i) {
    std::string_view word = command_line[i];
    std::string_view name = word.substr(0, word.find('='));
    if (std::find(flags.begin(), flags.end(), word) != flags.end()) {
      continue;
    }
    if (std::find(options.begin(), options.end(), name) == options.end()) {
      kept.emplace_back(word);
    } else if (name.size() == word.size()) {
      ++i;  // the value is the next word
    }
  }
  return kept;
}

std::vector<std::pair<std::string, std::string>> environment_of(const LaunchOptions& options) {
  static const std::regex kName("[A-Za-z_][A-Za-z0-9_]*");
  std::vector<std::pair<std::string, std::string>> variables;
  for (const std::string& entry : options.environment) {
    std::string name = entry.substr(0, entry.find('='));
    if (!std::regex_match(name, kName)) {
      throw base::user_error("--env {}: write NAME or NAME=VALUE", base::printable(name));
    }
    if (name.size() < entry.size()) {
      variables.emplace_back(name, entry.substr(name.size() + 1));
      continue;
    }
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) {
      throw base::user_error("--env {}: is not set here; write {}=VALUE", name, name);
    }
    variables.emplace_back(name, value);
  }
  return variables;
}

void check(const LaunchOptions& options) {
  if (options.nodes.has_value() && (*options.nodes < 1 || *options.nodes > kMostNodes)) {
    throw base::user_error("--nodes {}: must be between 1 and {}", *options.nodes, kMostNodes);
  }
  if (options.max_restarts < 0 || options.max_restarts > kMostRestarts) {
    throw base::user_error("--max-restarts {}: must be between 0 and {}", options.max_restarts,
                           kMostRestarts);
  }
  constexpr int kLastPort = 65534;  // the one after it is used, too
  if (options.rendezvous_port < 1 || options.rendezvous_port > kLastPort) {
    throw base::user_error("--rendezvous-port {}: must be between 1 and {}",
                           options.rendezvous_port, kLastPort);
  }
  check_hosts(options);
  environment_of(options);
  if (!options.job_name.empty() && options.job_name != job_name_from(options.job_name)) {
    throw base::user_error("--job-name {}: at most {} of a-z, 0-9 and '-', a letter first",
                           base::printable(options.job_name), kLongestJobName);
  }
  check_resources(options);
  check_defaulted(options);
  std::string_view launcher = options.launcher;
  if ((launcher == "local" || launcher == "docker") && options.node_count() > 1) {
    throw base::user_error(
        "--nodes {}: --launcher {} starts ranks on this host only; use torchrun, slurm, ray or "
        "kubernetes",
        options.node_count(), launcher);
  }
  only_for(options, !options.hosts.empty(), "--hosts", {"torchrun", "slurm", "kubernetes"});
  only_for(options, options.node_rank.has_value(), "--node-rank", {"torchrun"});
  only_for(options, options.max_restarts > 0, "--max-restarts",
           {"torchrun", "slurm", "kubernetes"});
  only_for(options, !options.time_limit.empty(), "--time-limit", {"slurm"});
  only_for(options, !options.image.empty(), "--image", {"docker", "kubernetes"});
  only_for(options, !options.launcher_options.empty(), "--launcher-option",
           {"docker", "torchrun", "slurm"});
  if (launcher == "torchrun") {
    check_torchrun(options);
  } else if (launcher == "slurm") {
    check_slurm(options);
  } else if (launcher == "docker" || launcher == "kubernetes") {
    check_container(options);
  }
}

}  // namespace ljtrain::ljperf
