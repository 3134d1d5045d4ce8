#include "launcher/rank_entry.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/errors.h"
#include "launcher/event_server.h"
#include "launcher/hardware.h"
#include "launcher/hosts.h"

namespace ljtrain::ljperf {
namespace {

// How long ranks wait for a collector that starts at the same time on another host.
constexpr std::chrono::seconds kCollectorPatience{60};

std::optional<int> number_in(const base::Environment& environment, const char* name) {
  auto found = environment.find(name);
  int value = 0;
  if (found == environment.end()) {
    return std::nullopt;
  }
  const std::string& text = found->second;
  auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && rest == text.data() + text.size() ? std::optional(value)
                                                                   : std::nullopt;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::vector<int> bind(const RankPlace& place) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (!place.by_slurm) {
    std::vector<std::vector<int>> places =
        place_ranks(detect_hardware().cores, place.local_world_size, /*oversubscribe=*/true);
    cpus = places.at(static_cast<std::size_t>(place.local_rank));
    for (int cpu : cpus) {
      CPU_SET(static_cast<std::size_t>(cpu), &set);
    }
    if (!cpus.empty() && ::sched_setaffinity(0, sizeof set, &set) != 0) {
      throw base::run_error("rank {} cannot be bound to its cores: {}", place.rank,
                            std::strerror(errno));
    }
    return cpus;
  }
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) {
        cpus.push_back(cpu);
      }
    }
  }
  return cpus;
}

// What the rank prints goes into its log, where that folder is (or can be made) on this host.
void redirect(const std::filesystem::path& folder, int rank) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::filesystem::path file = folder / fmt::format("rank-{}.log", rank);
  int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd >= 0) {
    ::dup2(fd, STDOUT_FILENO);
    ::dup2(fd, STDERR_FILENO);
    ::close(fd);
  }
}

// A file that lives as long as a descriptor to it: nothing to clean up on any host.
std::string memory_file(const std::string& content) {
  int fd = ::memfd_create("worker.json", 0);  // stays open in the program
  std::string_view rest = content;
  while (fd >= 0 && !rest.empty()) {
    ssize_t count = ::write(fd, rest.data(), rest.size());
    if (count < 0 && errno != EINTR) {
      break;
    }
    rest.remove_prefix(count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  if (fd < 0 || !rest.empty()) {
    throw base::run_error("the worker's settings cannot be kept in memory: {}",
                          std::strerror(errno));
  }
  return fmt::format("/proc/self/fd/{}", fd);
}

// HOST:PORT/RUN.
struct Collector {
  std::string host;
  int port = 0;
  std::string run;
};

Collector parse_collector(const std::string& text) {
  std::size_t slash = text.find('/');
  std::size_t colon = text.rfind(':', slash);
  Collector collector;
  if (slash == std::string::npos || colon == std::string::npos || colon > slash) {
    throw base::user_error("{}={}: is not HOST:PORT/RUN", kCollectorVariable, text);
  }
  collector.host = text.substr(0, colon);
  collector.port = std::atoi(text.c_str() + colon + 1);
  collector.run = text.substr(slash + 1);
  return collector;
}

void change(base::Environment& environment, const base::Json& changes) {
  for (const auto& [name, value] : changes.items()) {
    if (value.is_string()) {
      environment[name] = value.get<std::string>();
    } else {
      environment.erase(name);
    }
  }
}

// Reports to the collector, takes its settings and leaves the connection open for the events.
void report(const Collector& collector, const RankPlace& place, const std::vector<int>& cpus,
            base::Environment& environment, std::vector<std::string>& argv) {
  base::Json hello{{"event", "hello"},
                   {"run", collector.run},
                   {"rank", place.rank},
                   {"host", host_name()},
                   {"cpus", cpus}};
  std::pair<base::UniqueFd, base::Json> answer =
      report_to(collector.host, collector.port, hello, kCollectorPatience);
  const base::Json& reply = answer.second;
  change(environment, reply.value("environment", base::Json::object()));
  int fd = ::dup(answer.first.get());  // without close-on-exec
  environment["LJTRAIN_EVENT_FD"] = std::to_string(fd);
  std::string worker = reply.value("worker", base::Json()).dump();
  for (std::string& argument : argv) {
    if (argument == kWorkerPlaceholder) {
      argument = memory_file(worker);
    }
  }
}

void set_places(base::Environment& environment, const RankPlace& place) {
  environment["RANK"] = std::to_string(place.rank);
  environment["WORLD_SIZE"] = std::to_string(place.world_size);
  environment["LOCAL_RANK"] = std::to_string(place.local_rank);
  environment["LOCAL_WORLD_SIZE"] = std::to_string(place.local_world_size);
}

// Gloo takes the address that the host's name resolves to; where that is wrong (or nothing) the way
// to the other hosts is the one that counts.
void choose_interface(base::Environment& environment, const std::string& peer) {
  std::string& chosen = environment["GLOO_SOCKET_IFNAME"];
  if (!chosen.empty() || peer.empty()) {
    return;
  }
  try {
    chosen = interface_with(address_towards(peer));
  } catch (const base::RunError&) {
    chosen.clear();  // the rendezvous itself will say what is wrong
  }
  if (chosen.empty()) {
    environment.erase("GLOO_SOCKET_IFNAME");
  }
}

}  // namespace

std::optional<int> tasks_on_node(const std::string& text, int node) {
  std::size_t at = 0;
  while (at < text.size()) {
    int tasks = 0;
    int times = 1;
    const char* end = text.data() + text.size();
    auto [rest, error] = std::from_chars(text.data() + at, end, tasks);
    if (error != std::errc()) {
      return std::nullopt;
    }
    std::string_view tail(rest, static_cast<std::size_t>(end - rest));
    if (tail.starts_with("(x")) {
      auto [after, wrong] = std::from_chars(rest + 2, end, times);
      if (wrong != std::errc() || after == end || *after != ')') {
        return std::nullopt;
      }
      tail = std::string_view(after + 1, static_cast<std::size_t>(end - after - 1));
    }
    if (node < times) {
      return tasks;
    }
    node -= times;
    if (!tail.empty() && tail.front() != ',') {
      return std::nullopt;
    }
    at = text.size() - tail.size() + (tail.empty() ? 0 : 1);
  }
  return std::nullopt;
}

RankPlace place_from(const base::Environment& environment) {
  RankPlace place;
  std::optional<int> rank = number_in(environment, "RANK");
  std::optional<int> world = number_in(environment, "WORLD_SIZE");
  // srun's own variables win: inside a batch job the others may be left from somewhere else.
  std::optional<int> task = number_in(environment, "SLURM_PROCID");
  std::optional<int> tasks = number_in(environment, "SLURM_NTASKS");
  bool launched_by_torch = environment.contains("TORCHELASTIC_RUN_ID");
  if (task.has_value() && tasks.has_value() && !launched_by_torch &&
      environment.contains("SLURM_STEP_ID")) {
    place.by_slurm = true;
    place.rank = *task;
    place.world_size = *tasks;
    place.local_rank = number_in(environment, "SLURM_LOCALID").value_or(0);
    auto per_node = environment.find("SLURM_STEP_TASKS_PER_NODE");
    std::optional<int> local;
    if (per_node != environment.end()) {
      local = tasks_on_node(per_node->second, number_in(environment, "SLURM_NODEID").value_or(0));
    }
    place.local_world_size = local.value_or(1);
  } else if (rank.has_value() && world.has_value()) {
    place.rank = *rank;
    place.world_size = *world;
    place.local_rank = number_in(environment, "LOCAL_RANK").value_or(*rank);
    place.local_world_size = number_in(environment, "LOCAL_WORLD_SIZE").value_or(*world);
  } else {
    throw base::user_error(
        "`ljperf rank` is started by torchrun, srun or Ray, which say which rank it is; RANK and "
        "WORLD_SIZE are not set here");
  }
  if (place.rank < 0 || place.rank >= place.world_size || place.local_rank < 0 ||
      place.local_rank >= place.local_world_size) {
    throw base::user_error("rank {} of {}, on its host {} of {}: no such place", place.rank,
                           place.world_size, place.local_rank, place.local_world_size);
  }
  return place;
}

namespace {

struct RankTask {
  std::vector<std::string> argv;
  std::filesystem::path log_folder;  // rank-N.log there takes what it prints; empty: not redirected
};

RankTask parse_rank_task(const std::string& text) {
  try {
    base::Json json = base::Json::parse(text);
    RankTask task{json.at("argv").get<std::vector<std::string>>(), json.value("log", "")};
    if (!task.argv.empty()) {
      return task;
    }
  } catch (const base::Json::exception&) {  // answered below
  }
  throw base::user_error("`ljperf rank` is started by a launcher, with a task as its argument");
}

}  // namespace

void become_rank(const std::string& text) {
  RankTask task = parse_rank_task(text);
  std::vector<std::string>& argv = task.argv;
  base::Environment environment = base::current_environment();
  RankPlace place = place_from(environment);
  std::vector<int> cpus = bind(place);
  set_places(environment, place);
  std::string peer = environment.contains("MASTER_ADDR") ? environment["MASTER_ADDR"] : "";
  std::size_t threads = std::max<std::size_t>(1, cpus.size());
  bool collected = environment.contains(kCollectorVariable);
  if (collected) {
    report(parse_collector(environment[kCollectorVariable]), place, cpus, environment, argv);
  } else if (place.by_slurm || environment["OMP_NUM_THREADS"].empty() ||
             environment.contains("TORCHELASTIC_RUN_ID")) {
    // torchrun sets it to 1 when it is not set; a rank has its own cores here.
    environment["OMP_NUM_THREADS"] = std::to_string(threads);
  }
  choose_interface(environment, peer);
  if (!task.log_folder.empty()) {
    redirect(task.log_folder, place.rank);
  }
  ::clearenv();
  for (const auto& [name, value] : environment) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<char*> arguments;
  for (std::string& argument : argv) {
    arguments.push_back(argument.data());
  }
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  throw base::run_error("cannot start {}: {}", argv.front(), std::strerror(errno));
}

}  // namespace ljtrain::ljperf
