#include "launch.h"

#include <ctime>
#include <fstream>

#include "base/errors.h"
#include "benchmark/report.h"
#include "benchmark/run_environment.h"
#include "cnp/record_file.h"
#include "launcher/elsewhere.h"
#include "launcher/engines.h"
#include "launcher/rank_entry.h"
#include "output.h"

namespace ljtrain::ljperf {
namespace {

// torchrun and srun end their ranks in this time when they are asked to.
constexpr std::chrono::seconds kEngineGrace{20};

// The same on every host of the run.
std::string run_name(const BenchmarkPlan& plan, int run) {
  const LaunchOptions& launch = plan.options.launch;
  std::string name = !launch.job_name.empty() ? launch.job_name
                     : launch.node_rank.has_value()
                         ? job_name_from(plan.model)
                         : fmt::format("ljperf-{}-{}", std::time(nullptr), ::getpid());
  return fmt::format("{}-{}", name, run + 1);
}

base::OrderedJson environment_changes(const BenchmarkPlan& plan) {
  base::OrderedJson changes = base::OrderedJson::object();
  for (const auto& [name, value] : plan.base_stack) {
    changes[name] = value.has_value() ? base::OrderedJson(*value) : base::OrderedJson(nullptr);
  }
  for (const auto& [name, value] : environment_of(plan.options.launch)) {
    changes[name] = value;
  }
  return changes;
}

EngineGroupPlan engine_plan(const BenchmarkPlan& plan, const RankCommand& command,
                            const std::string& run) {
  EngineGroupPlan group;
  group.processes = engine_processes(plan.options.launch, command, run, plan.on_gpus);
  group.log_folder = command.engine_log_folder;
  group.step_timeout =
      std::chrono::milliseconds(static_cast<long>(plan.options.step_timeout * 1e3));
  group.start_timeout = std::max(group.start_timeout, group.step_timeout);
  group.grace = kEngineGrace;
  return group;
}

ElsewhereJob job_of(const BenchmarkOptions& options) {
  const LaunchOptions& launch = options.launch;
  ElsewhereJob job;
  std::vector<std::string> words(options.command_line.begin() + 1, options.command_line.end());
  std::vector<std::string_view> names = launch_option_names();
  bool batch = launch.launcher == "slurm";
  if (batch) {
    names.emplace_back("--output");
  }
  job.arguments = without_options(words, names, {"--dry-run"});
  std::string model = options.config.empty() ? options.model : options.config.stem().string();
  job.name = launch.job_name.empty() ? job_name_from("ljperf-" + model) : launch.job_name;
  job.ranks_per_node = options.ranks.value_or(launch.gpus_per_node.value_or(1));
  job.ljperf = this_program();
  job.working_directory = std::filesystem::current_path();
  for (const auto& [name, value] : environment_of(launch)) {
    job.environment[name] = value;
    if (redact(name, value) != value) {
      job.secrets.insert(name);
    }
  }
  if (batch) {
    job.folder = std::filesystem::absolute(options.output.empty() ? std::filesystem::path(job.name)
                                                                  : options.output);
    job.result = job.folder / "result.json";
    job.arguments = without_options(job.arguments, {}, {"--json"});
    job.arguments.insert(job.arguments.end(),
                         {"--json", "--output=" + (job.folder / "training").string()});
    if (!options.ranks.has_value()) {
      job.arguments.push_back(fmt::format("--ranks={}", job.ranks_per_node));
    }
  } else if (launch.launcher == "docker") {
    job.folder = cnp::records_folder();
  }
  return job;
}

// The record that the job has written, if any.
std::optional<cnp::Record> record_of(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error) ||
      std::filesystem::file_size(file, error) == 0) {
    return std::nullopt;
  }
  return cnp::read_record(file);
}

int benchmark_in_batch(const BenchmarkOptions& options, const ElsewhereJob& job) {
  std::error_code error;
  std::filesystem::create_directories(job.folder, error);
  if (error) {
    throw base::user_error("{}: not a folder that can be written; choose another --output",
                           job.folder.string());
  }
  std::filesystem::remove(job.result, error);  // of an earlier job in the same folder
  for (const auto& [name, value] : job.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);  // sbatch hands our environment on
  }
  base::Interrupts interrupts;
  BatchJob batch = batch_job(options.launch, job);
  JobEnd end = submit_and_wait(options.launch, batch, interrupts);
  if (end.interrupted) {
    say(stderr, "ljperf: {}\n", end.reason);
    return base::kInterrupted;
  }
  std::optional<cnp::Record> record = record_of(job.result);
  if (!record.has_value()) {
    if (end.state == "FAILED" && end.exit_code == base::kBadInput) {
      throw base::UserError(describe(end, batch));
    }
    throw base::RunError(describe(end, batch));
  }
  std::FILE* out = options.json ? stderr : stdout;
  say(out, "{}\n{}\n{}", first_line(*record), configuration_line(*record), result_table(*record));
  if (record->failure.has_value()) {
    say(stderr, "ljperf: {}; {}\n", record->failure->sentence, describe(end, batch));
  }
  say(out, "\nrecord: {}\n{}\n", job.result.string(), last_line(*record));
  if (options.json) {
    say(stdout, "{}\n", cnp::to_json(*record).dump(2));
  }
  return end.state == "COMPLETED" ? base::kDone : base::kFailed;
}

}  // namespace

RankCommand rank_command(const BenchmarkPlan& plan, const std::filesystem::path& folder) {
  RankCommand command;
  command.ljperf = this_program();
  command.python = plan.python;
  command.argv = {plan.python.string(), "-m", "ljtrain.worker", kWorkerPlaceholder};
  command.ranks_per_node = plan.ranks_per_node;
  command.engine_log_folder = folder;
  // A folder of this host alone must not be made on others: there the engine carries the output.
  if (plan.nodes == 1 || !plan.options.output.empty()) {
    command.log_folder = folder;
  }
  command.working_directory = std::filesystem::current_path();
  return command;
}

RankGroupResult run_by_engine(const BenchmarkPlan& plan, const std::filesystem::path& folder,
                              const base::OrderedJson& worker, const RankGroupObserver& observer,
                              const base::Interrupts& interrupts, int run,
                              std::vector<RankIdentity>& identities) {
  std::string name = run_name(plan, run);
  Collector collector =
      make_collector(plan.options.launch, name, plan.ranks,
                     {{"environment", environment_changes(plan)}, {"worker", worker}});
  RankCommand command = rank_command(plan, folder);
  command.environment[kCollectorVariable] = collector.address;
  EngineGroupPlan group = engine_plan(plan, command, name);
  group.ranks = plan.ranks;
  RankGroupResult result = run_engine(group, collector.server.get(), observer, interrupts);
  identities.clear();
  for (int rank = 0; rank < plan.ranks; ++rank) {
    identities.push_back(collector.server->identity(rank).value_or(RankIdentity{}));
  }
  return result;
}

int run_other_node(const BenchmarkPlan& plan) {
  const LaunchOptions& launch = plan.options.launch;
  base::Interrupts interrupts;
  say(stderr, "host {} of {}: the record is written by host 0, {}\n", *launch.node_rank,
      launch.node_count(), launch.hosts.front());
  for (int run = 0; run < plan.options.repeat; ++run) {
    std::string name = run_name(plan, run);
    Collector collector = make_collector(launch, name, plan.ranks, {});
    RankCommand command = rank_command(plan, "");
    command.log_folder.clear();
    command.environment[kCollectorVariable] = collector.address;
    EngineGroupPlan group = engine_plan(plan, command, name);
    RankGroupResult result = run_engine(group, nullptr, {}, interrupts);
    if (result.outcome != Outcome::kCompleted) {
      say(stderr, "ljperf: {}\n", result.sentence);
      return result.outcome == Outcome::kInterrupted ? base::kInterrupted : base::kFailed;
    }
  }
  return base::kDone;
}

int benchmark_elsewhere(const BenchmarkOptions& options) {
  check(options);
  ElsewhereJob job = job_of(options);
  if (options.dry_run) {
    say(stdout, "{}", describe(make_launch(options.launch, job), options.launch, options.json));
    return base::kDone;
  }
  if (options.launch.launcher == "slurm") {
    return benchmark_in_batch(options, job);
  }
  for (const auto& [name, value] : job.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);  // docker takes the values from our environment
  }
  if (options.launch.launcher == "docker") {
    std::error_code error;
    std::filesystem::create_directories(job.folder, error);
  }
  return run_launch(make_launch(options.launch, job));
}

}  // namespace ljtrain::ljperf
