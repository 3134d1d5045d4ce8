#include "train/run_train.h"

#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <fstream>

#include "base/errors.h"
#include "base/json.h"
#include "benchmark/python_environment.h"
#include "benchmark/run_environment.h"
#include "elsewhere.h"
#include "launcher/engines.h"
#include "launcher/hardware.h"
#include "launcher/rank_group.h"
#include "launcher/shell.h"

namespace ljtrain::ljperf {
namespace {

// A training may want to save before it goes.
constexpr std::chrono::seconds kGrace{10};
constexpr int kMostRanks = 4096;  // a host

// What every rank of the script needs, whoever starts it.
struct TrainPlan {
  LaunchOptions launch;
  Hardware hardware;
  RankCommand command;
  std::vector<std::vector<int>> placement;  // of this host's ranks
  bool on_gpus = false;
};

std::filesystem::path log_folder(const TrainOptions& options) {
  if (options.output.empty()) {
    return {};
  }
  std::filesystem::path folder = std::filesystem::absolute(options.output);
  std::error_code error;
  if (!options.dry_run && !std::filesystem::create_directories(folder, error) && error) {
    throw base::user_error("--output {}: not a folder that can be written", folder.string());
  }
  return folder;
}

std::vector<std::string> program_of(const TrainOptions& options,
                                    const std::filesystem::path& python) {
  std::vector<std::string> argv{python.string(), "-u"};
  argv.insert(argv.end(), options.script.begin(), options.script.end());
  std::error_code error;
  if (options.script.front() != "-m" &&
      !std::filesystem::is_regular_file(options.script.front(), error)) {
    throw base::user_error("SCRIPT {}: no such file", options.script.front());
  }
  return argv;
}

TrainPlan make_train_plan(const TrainOptions& options) {
  TrainPlan plan;
  plan.launch = settled(options.launch, base::current_environment());
  plan.hardware = detect_hardware();
  plan.on_gpus = !plan.hardware.gpus.empty();
  int gpus = static_cast<int>(plan.hardware.gpus.size());
  plan.command.ljperf = this_program();
  plan.command.python = find_python(options.python);
  plan.command.argv = program_of(options, plan.command.python);
  plan.command.ranks_per_node =
      options.ranks.value_or(plan.on_gpus ? gpus : plan.hardware.usable_cores());
  plan.command.log_folder = log_folder(options);
  plan.command.working_directory = std::filesystem::current_path();
  for (const auto& [name, value] : environment_of(plan.launch)) {
    plan.command.environment[name] = value;
  }
  plan.placement = place_ranks(plan.hardware.cores, plan.command.ranks_per_node,
                               options.oversubscribe || plan.on_gpus);
  return plan;
}

// Shows what rank 0 prints as it comes.
class Follower {
 public:
  explicit Follower(const std::filesystem::path& log) : stream_(log, std::ios::binary) {}
  void show() {
    char buffer[8192];
    stream_.clear();
    while (stream_.read(buffer, sizeof buffer), stream_.gcount() > 0) {
      std::fwrite(buffer, 1, static_cast<std::size_t>(stream_.gcount()), stdout);
      stream_.clear();
    }
    std::fflush(stdout);
  }

 private:
  std::ifstream stream_;
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ljperf-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw base::user_error("{}: no folder can be made here; name a writable one with --output",
                             pattern);
    }
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

RankGroupPlan local_plan(const TrainPlan& plan, const std::filesystem::path& folder) {
  RankGroupPlan group;
  group.argv = plan.command.argv;
  group.environment = base::current_environment();
  for (const auto& [name, value] : plan.command.environment) {
    group.environment[name] = value;
  }
  std::size_t threads = plan.placement.front().empty() ? 1 : plan.placement.front().size();
  if (!plan.on_gpus || group.environment["OMP_NUM_THREADS"].empty()) {
    group.environment["OMP_NUM_THREADS"] = std::to_string(threads);
  }
  if (group.environment["GLOO_SOCKET_IFNAME"].empty()) {
    group.environment["GLOO_SOCKET_IFNAME"] = "lo";  // all ranks are on this host
  }
  group.placement = plan.placement;
  group.log_folder = folder;
  group.reports = false;
  group.grace = kGrace;
  return group;
}

int report(const RankGroupResult& result, const std::filesystem::path& logs) {
  if (result.outcome == Outcome::kCompleted) {
    return base::kDone;
  }
  fmt::print(stderr, "ljperf: {}\n", result.sentence);
  if (result.outcome == Outcome::kInterrupted) {
    return base::kInterrupted;
  }
  if (result.failing_rank > 0 && !result.last_lines.empty()) {  // what rank 0 said was shown
    fmt::print(stderr, "the last lines of rank {}:\n", result.failing_rank);
    for (const std::string& line : result.last_lines) {
      fmt::print(stderr, "  | {}\n", line);
    }
  }
  if (!logs.empty()) {
    fmt::print(stderr, "logs: {}\n", logs.string());
  }
  return base::kFailed;
}

int train_here(const TrainPlan& plan) {
  std::optional<TemporaryFolder> temporary;
  std::filesystem::path folder = plan.command.log_folder;
  if (folder.empty()) {
    temporary.emplace();
    folder = temporary->path();
  }
  // Made empty before it is read: a log of an earlier run may stand there.
  std::filesystem::path log = folder / "rank-0.log";
  std::ofstream(log).flush();
  Follower follower(log);
  base::Interrupts interrupts;
  RankGroupObserver observer;
  observer.on_tick = [&] { follower.show(); };
  RankGroupResult result = run_ranks(local_plan(plan, folder), observer, interrupts);
  follower.show();
  return report(result, plan.command.log_folder);
}

int train_by_engine(const TrainPlan& plan) {
  std::string run = plan.launch.job_name;
  if (run.empty()) {
    run = plan.launch.node_rank.has_value() ? "ljperf-train"
                                            : fmt::format("ljperf-{}", std::time(nullptr));
  }
  EngineGroupPlan group;
  group.processes = engine_processes(plan.launch, plan.command, run, plan.on_gpus);
  group.grace = std::chrono::milliseconds(kGrace) * 3;  // torchrun's own, and then some
  base::Interrupts interrupts;
  return report(run_engine(group, nullptr, {}, interrupts), plan.command.log_folder);
}

base::OrderedJson shown(const base::Environment& environment) {
  base::OrderedJson variables = base::OrderedJson::object();
  for (const auto& [name, value] : environment) {
    variables[name] = redact(name, value);
  }
  return variables;
}

std::vector<std::string> redacted(std::vector<std::string> argv) {
  for (std::string& argument : argv) {
    argument = redact_argument(argument);
  }
  return argv;
}

void print_dry_run(const TrainOptions& options, const TrainPlan& plan) {
  std::vector<std::pair<std::string, std::vector<std::string>>> commands;
  if (runs_by_engine(plan.launch, base::current_environment())) {
    RankCommand command = plan.command;
    for (auto& [name, value] : command.environment) {
      value = redact(name, value);
    }
    commands = engine_commands(plan.launch, command, "RUN", plan.on_gpus);
  } else {
    for (std::size_t rank = 0; rank < plan.placement.size(); ++rank) {
      commands.emplace_back(
          fmt::format("rank {} on cpus {}", rank, fmt::join(plan.placement[rank], ",")),
          plan.command.argv);
    }
  }
  if (options.json) {
    base::OrderedJson list = base::OrderedJson::array();
    for (const auto& [where, argv] : commands) {
      list.push_back({{"where", where}, {"argv", redacted(argv)}});
    }
    fmt::print("{}\n", base::OrderedJson{{"schema_version", 1},
                                         {"dry_run", true},
                                         {"launcher", plan.launch.launcher},
                                         {"nodes", plan.launch.node_count()},
                                         {"ranks_per_node", plan.command.ranks_per_node},
                                         {"commands", list},
                                         {"environment", shown(plan.command.environment)}}
                           .dump(2));
    return;
  }
  for (const auto& [where, argv] : commands) {
    fmt::print("# {}\n{}\n", where, shell_join(redacted(argv)));
  }
  for (const auto& [name, value] : plan.command.environment) {
    fmt::print("# environment: {}={}\n", name, redact(name, value));
  }
  fmt::print("Dry run: nothing was started.\n");
}

}  // namespace

int run_train(const TrainOptions& options) {
  check(options.launch);
  if (options.ranks.has_value() && (*options.ranks < 1 || *options.ranks > kMostRanks)) {
    throw base::user_error("--ranks {}: must be between 1 and {}", *options.ranks, kMostRanks);
  }
  if (options.json && !options.dry_run) {
    throw base::user_error(
        "--json: `ljperf train` prints what the script prints; --json is for "
        "--dry-run");
  }
  base::Environment environment = base::current_environment();
  if (runs_elsewhere(options.launch, environment)) {
    return train_elsewhere(options);
  }
  TrainPlan plan = make_train_plan(options);
  if (options.dry_run) {
    print_dry_run(options, plan);
    return base::kDone;
  }
  return runs_by_engine(plan.launch, environment) ? train_by_engine(plan) : train_here(plan);
}

}  // namespace ljtrain::ljperf
