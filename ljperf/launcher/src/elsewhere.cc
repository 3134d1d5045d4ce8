#include "launcher/elsewhere.h"

#include <unistd.h>

#include "base/errors.h"
#include "launcher/engine_group.h"
#include "launcher/rank_command.h"
#include "launcher/shell.h"

namespace ljtrain::ljperf {

const std::vector<std::string_view>& launch_option_names() {
  static const std::vector<std::string_view> kNames{
      "--launcher",        "--nodes",          "--hosts",     "--node-rank",     "--remote-shell",
      "--rendezvous-port", "--max-restarts",   "--env",       "--job-name",      "--time-limit",
      "--image",           "--kind",           "--namespace", "--gpus-per-node", "--cpus-per-node",
      "--memory-per-node", "--launcher-option"};
  return kNames;
}

BatchJob batch_job(const LaunchOptions& options, const ElsewhereJob& job) {
  BatchJob batch;
  batch.argv = {job.ljperf.string()};
  batch.argv.insert(batch.argv.end(), job.arguments.begin(), job.arguments.end());
  batch.argv.emplace_back("--launcher=slurm");
  for (const std::string& option : options.launcher_options) {
    batch.argv.push_back("--launcher-option=" + option);
  }
  // Names only: the job inherits the values with the rest of the environment.
  for (const auto& [name, value] : job.environment) {
    batch.argv.push_back("--env=" + name);
  }
  batch.argv.insert(batch.argv.end(), job.script.begin(), job.script.end());
  batch.name = job.name;
  batch.nodes = options.node_count();
  batch.ranks_per_node = std::max(1, job.ranks_per_node);
  batch.folder = job.folder;
  batch.result = job.result;
  return batch;
}

Launch slurm_launch(const LaunchOptions& options, const ElsewhereJob& job) {
  BatchJob batch = batch_job(options, job);
  Launch launch;
  launch.form = "script";
  launch.argv = sbatch_argv(options, batch);
  launch.text = batch_script(options, batch);
  launch.notes = {fmt::format("{} and {} must be the same on all nodes (a shared file system)",
                              job.folder.string(), job.ljperf.string())};
  return launch;
}

Launch make_launch(const LaunchOptions& options, const ElsewhereJob& job) {
  return options.launcher == "docker"       ? docker_launch(options, job)
         : options.launcher == "kubernetes" ? kubernetes_launch(options, job)
                                            : slurm_launch(options, job);
}

std::string describe(const Launch& launch, const LaunchOptions& options, bool json) {
  if (json) {
    base::OrderedJson document = {{"schema_version", 1},
                                  {"dry_run", true},
                                  {"launcher", options.launcher},
                                  {"nodes", options.node_count()},
                                  {"argv", launch.argv}};
    if (!launch.text.empty()) {
      document[launch.form] = launch.text;
    }
    document["notes"] = launch.notes;
    return document.dump(2) + "\n";
  }
  std::string text;
  for (const std::string& note : launch.notes) {
    text += "# " + note + "\n";
  }
  std::string command = shell_join(launch.argv);
  return launch.text.empty() ? text + command + "\n"
                             : text + "# for: " + command + "\n" + launch.text;
}

int run_launch(const Launch& launch) {
  if (program_in_path(launch.argv.front()).empty()) {
    throw base::user_error(
        "{} is not in PATH, so nothing was started; --dry-run prints what it would be given",
        launch.argv.front() == "docker" ? "neither docker nor podman" : launch.argv.front());
  }
  EngineGroupPlan plan;
  EngineProcess process;
  process.name = launch.argv.front();
  process.argv = launch.argv;
  process.environment = base::current_environment();
  process.input = launch.input;
  process.ends_input = true;
  plan.processes.push_back(std::move(process));
  base::Interrupts interrupts;
  int code = 0;
  RankGroupResult result = run_engine(plan, nullptr, {}, interrupts, &code);
  if (result.outcome == Outcome::kInterrupted) {
    return base::kInterrupted;
  }
  bool known = code == base::kDone || code == base::kBadInput || code == base::kInterrupted;
  constexpr int kEngineFailed = 125;  // of docker and podman: not the container's own
  if (code == kEngineFailed && launch.form == "command") {
    fmt::print(stderr, "ljperf: {} itself failed and started nothing; it says why above\n",
               launch.argv.front());
  } else if (!known) {
    fmt::print(stderr, "ljperf: {}\n", result.sentence);
  }
  return known ? code : static_cast<int>(base::kFailed);
}

}  // namespace ljtrain::ljperf
