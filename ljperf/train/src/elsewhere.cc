#include "elsewhere.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/errors.h"
#include "benchmark/run_environment.h"
#include "launcher/elsewhere.h"
#include "launcher/rank_command.h"

namespace ljtrain::ljperf {
namespace {

// The arguments before the script, as typed.
std::vector<std::string> own_arguments(const TrainOptions& options) {
  std::vector<std::string> words = options.command_line;
  words.erase(words.begin());  // the program
  words.resize(words.size() - std::min(words.size(), options.script.size()));
  std::vector<std::string_view> names = launch_option_names();
  names.emplace_back("--output");
  return without_options(words, names, {"--dry-run", "--json"});
}

ElsewhereJob job_of(const TrainOptions& options) {
  const LaunchOptions& launch = options.launch;
  ElsewhereJob job;
  job.arguments = own_arguments(options);
  job.script = options.script;
  const std::string& what =
      options.script.front() == "-m" ? options.script.at(1) : options.script.front();
  job.name = launch.job_name.empty() ? job_name_from(std::filesystem::path(what).stem().string())
                                     : launch.job_name;
  job.ranks_per_node = options.ranks.value_or(launch.gpus_per_node.value_or(1));
  job.ljperf = this_program();
  job.working_directory = std::filesystem::current_path();
  for (const auto& [name, value] : environment_of(launch)) {
    job.environment[name] = value;
    if (redact(name, value) != value) {
      job.secrets.insert(name);
    }
  }
  if (launch.launcher == "slurm") {
    job.folder = std::filesystem::absolute(options.output.empty() ? std::filesystem::path(job.name)
                                                                  : options.output);
    job.arguments.push_back("--output=" + (job.folder / "ranks").string());
    if (!options.ranks.has_value()) {
      job.arguments.push_back(fmt::format("--ranks={}", job.ranks_per_node));
    }
  } else if (!options.output.empty()) {
    job.arguments.push_back("--output=" + options.output.string());
  }
  return job;
}

int train_in_batch(const LaunchOptions& launch, const ElsewhereJob& job) {
  std::error_code error;
  std::filesystem::create_directories(job.folder, error);
  if (error) {
    throw base::user_error("{}: not a folder that can be written; choose another --output",
                           job.folder.string());
  }
  for (const auto& [name, value] : job.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);  // sbatch hands our environment on
  }
  base::Interrupts interrupts;
  BatchJob batch = batch_job(launch, job);
  JobEnd end = submit_and_wait(launch, batch, interrupts);
  if (end.interrupted) {
    fmt::print(stderr, "ljperf: {}\n", end.reason);
    return base::kInterrupted;
  }
  if (end.state != "COMPLETED") {
    throw base::RunError(describe(end, batch));
  }
  fmt::print(stderr, "Slurm job {} is done; what it printed is in {}\n", end.id,
             (job.folder / fmt::format("slurm-{}.log", end.id)).string());
  return base::kDone;
}

}  // namespace

int train_elsewhere(const TrainOptions& options) {
  ElsewhereJob job = job_of(options);
  std::error_code error;
  if (options.launch.launcher != "kubernetes" && options.script.front() != "-m" &&
      !std::filesystem::is_regular_file(options.script.front(), error)) {
    throw base::user_error("SCRIPT {}: no such file", options.script.front());
  }
  if (options.dry_run) {
    fmt::print("{}", describe(make_launch(options.launch, job), options.launch, options.json));
    return base::kDone;
  }
  if (options.launch.launcher == "slurm") {
    return train_in_batch(options.launch, job);
  }
  for (const auto& [name, value] : job.environment) {
    ::setenv(name.c_str(), value.c_str(), 1);  // docker takes the values from our environment
  }
  return run_launch(make_launch(options.launch, job));
}

}  // namespace ljtrain::ljperf
