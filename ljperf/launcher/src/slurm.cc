#include "launcher/slurm.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "base/errors.h"
#include "base/text.h"
#include "launcher/shell.h"

namespace ljtrain::ljperf {
namespace {

// How long before its time limit a job is told (seconds): enough for what trains to be ended and
// for the requeue.
constexpr int kWarningSeconds = 60;
constexpr int kFirstPort = 20000;
constexpr int kPorts = 10000;

int number_or(const base::Environment& environment, const char* name, int otherwise) {
  auto found = environment.find(name);
  int value = 0;
  if (found == environment.end()) {
    return otherwise;
  }
  const std::string& text = found->second;
  auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && rest == text.data() + text.size() ? value : otherwise;
}

// The value of KEY= in scontrol's one line: up to the next " Word=".
std::string value_of(const std::string& text, const std::string& key) {
  std::size_t at = text.starts_with(key + "=") ? 0 : text.find(" " + key + "=");
  if (at == std::string::npos) {
    return "";
  }
  at = text.find('=', at) + 1;
  return text.substr(at, text.find_first_of(" \n", at) - at);
}

std::vector<std::string> resources(const LaunchOptions& options, int nodes, int ranks_per_node) {
  std::vector<std::string> words{fmt::format("--nodes={}", nodes),
                                 fmt::format("--ntasks-per-node={}", ranks_per_node)};
  if (options.cpus_per_node.has_value()) {
    words.push_back(
        fmt::format("--cpus-per-task={}", std::max(1, *options.cpus_per_node / ranks_per_node)));
  }
  if (options.gpus_per_node.has_value()) {
    words.push_back(fmt::format("--gpus-per-node={}", *options.gpus_per_node));
  }
  return words;
}

// What the script does at a warning (USR1) and after a failure: at most --max-restarts requeues.
std::string requeue_functions(int max_restarts) {
  return fmt::format(R"(
# Slurm counts the job's starts after the first.
restarts=${{SLURM_RESTART_COUNT:-0}}
run=
end_run() {{
  trap '' USR1
  [ -z "$run" ] || kill -TERM "$run" 2>/dev/null
  [ -z "$run" ] || wait "$run"
}}
again() {{
  echo "ljperf: $1; start $((restarts + 2)) of at most {}" >&2
  scontrol requeue "$SLURM_JOB_ID" && exit 0
}}
# The time limit is near, or the job is preempted.
warned() {{
  end_run
  [ "$restarts" -ge {} ] || again "the job is requeued before its time is over"
  exit 1
}}
trap warned USR1
)",
                     max_restarts + 1, max_restarts);
}

}  // namespace

bool inside_allocation(const base::Environment& environment) {
  return environment.contains("SLURM_JOB_ID") && environment.contains("SLURM_JOB_NUM_NODES");
}

int allocated_nodes(const base::Environment& environment) {
  return std::max(1, number_or(environment, "SLURM_JOB_NUM_NODES", 1));
}

std::vector<std::string> srun_argv(const LaunchOptions& options, const RankCommand& command,
                                   const std::string& run) {
  int nodes = options.node_count();
  std::vector<std::string> argv{"srun", fmt::format("--job-name={}", run)};
  std::vector<std::string> wanted = resources(options, nodes, command.ranks_per_node);
  argv.insert(argv.end(), wanted.begin(), wanted.end());
  argv.push_back(fmt::format("--ntasks={}", nodes * command.ranks_per_node));
  if (!options.hosts.empty()) {
    argv.push_back(fmt::format("--nodelist={}", fmt::join(options.hosts, ",")));
  }
  // Ranks of a host are neighbours, as LOCAL_RANK and the collectives of hosts assume.
  argv.insert(argv.end(), {"--distribution=block:block", "--kill-on-bad-exit=1", "--wait=30",
                           "--unbuffered", "--export=ALL"});
  argv.insert(argv.end(), options.launcher_options.begin(), options.launcher_options.end());
  std::vector<std::string> rank = rank_argv(command);
  argv.insert(argv.end(), rank.begin(), rank.end());
  return argv;
}

std::string batch_script(const LaunchOptions& options, const BatchJob& job) {
  std::string script = "#!/bin/bash\n# Written by ljperf; submitted by:\n";
  script += fmt::format("#   {}\n", shell_join(sbatch_argv(options, job)));
  script += fmt::format("#SBATCH --job-name={}\n", job.name);
  for (const std::string& word : resources(options, job.nodes, job.ranks_per_node)) {
    script += fmt::format("#SBATCH {}\n", word);
  }
  if (!options.time_limit.empty()) {
    script += fmt::format("#SBATCH --time={}\n", options.time_limit);
  }
  script += "#SBATCH --open-mode=append\n";
  script += options.max_restarts > 0 ? "#SBATCH --requeue\n" : "#SBATCH --no-requeue\n";
  // To the batch shell only: it ends the run in order, and the requeue follows.
  script += fmt::format("#SBATCH --signal=B:USR1@{}\n", kWarningSeconds);
  script += requeue_functions(options.max_restarts);
  std::string command = shell_join(job.argv);
  if (job.result.empty()) {
    script += fmt::format("\n{} &\n", command);
  } else {
    script += fmt::format("\nresult={}\n{} >\"$result.part\" &\n", shell_quote(job.result.string()),
                          command);
  }
  script += "run=$!\nwait \"$run\"\ncode=$?\n";
  if (!job.result.empty()) {
    script += "mv -f \"$result.part\" \"$result\"\n";
  }
  // 2 is bad input and 130 an interrupt: neither gets better by another try.
  script += fmt::format(
      "if [ $code -ne 0 ] && [ $code -ne 2 ] && [ $code -ne 130 ] && [ \"$restarts\" -lt {} ]; "
      "then\n  again \"the run ended with exit code $code\"\nfi\nexit $code\n",
      options.max_restarts);
  return script;
}

std::vector<std::string> sbatch_argv(const LaunchOptions& options, const BatchJob& job) {
  std::string folder = job.folder.string();
  if (folder.find_first_of("%\\") != std::string::npos) {
    throw base::user_error(
        "{}: Slurm takes % and \\ in the path of a log for its own; choose another --output",
        folder);
  }
  std::vector<std::string> argv{"sbatch", "--parsable",
                                fmt::format("--output={}", (job.folder / "slurm-%j.log").string())};
  if (!options.hosts.empty()) {
    argv.push_back(fmt::format("--nodelist={}", fmt::join(options.hosts, ",")));
  }
  argv.insert(argv.end(), options.launcher_options.begin(), options.launcher_options.end());
  argv.push_back((job.folder / "job.sh").string());
  return argv;
}

std::string slurm_complaint(const base::Captured& answer) {
  if (answer.timed_out) {
    return "it gave no answer in time";
  }
  std::string reason;
  std::istringstream lines(answer.errors);
  for (std::string line; std::getline(lines, line);) {
    for (std::string_view mark : {": error: ", ": fatal: "}) {
      std::size_t at = line.find(mark);
      reason = at == std::string::npos ? reason : line.substr(at + mark.size());
    }
    reason = reason.empty() ? line : reason;
  }
  return reason.empty() ? fmt::format("exit code {}", answer.status.code) : base::printable(reason);
}

JobEnd parse_job(const std::string& text) {
  JobEnd end;
  end.id = value_of(text, "JobId");
  end.state = value_of(text, "JobState");
  end.reason = value_of(text, "Reason");
  std::string code = value_of(text, "ExitCode");  // CODE:SIGNAL
  std::size_t colon = code.find(':');
  if (colon != std::string::npos) {
    end.exit_code = std::atoi(code.c_str());
    end.signal = std::atoi(code.c_str() + colon + 1);
  }
  return end;
}

std::string describe(const JobEnd& end, const BatchJob& job) {
  std::string how = end.signal != 0 ? fmt::format("signal {}", end.signal)
                                    : fmt::format("exit code {}", end.exit_code);
  std::string why =
      end.reason.empty() || end.reason == "None" ? how : fmt::format("{}, {}", end.reason, how);
  std::filesystem::path log = job.folder / fmt::format("slurm-{}.log", end.id);
  std::string sentence = fmt::format("Slurm job {} ended as {} ({})", end.id, end.state, why);
  // ljperf's own sentence, else whatever was said last.
  constexpr std::size_t kLines = 30;
  std::vector<std::string> lines = last_lines_of(log, kLines);
  auto own = std::find_if(lines.rbegin(), lines.rend(),
                          [](const std::string& line) { return line.starts_with("ljperf: "); });
  if (own != lines.rend()) {
    lines.push_back(own->substr(std::string_view("ljperf: ").size()));
  }
  return lines.empty() ? fmt::format("{}; it left no log at {}", sentence, log.string())
                       : fmt::format("{}: {}", sentence, lines.back());
}

void ask_step_to_end(const std::string& run) {
  constexpr std::chrono::seconds kPatience{10};
  const base::Environment environment = base::current_environment();
  auto job = environment.find("SLURM_JOB_ID");
  base::SpawnOptions options;
  options.environment = environment;
  options.argv = {"squeue", "--noheader", "--steps", "--format=%i %j"};
  if (job != environment.end()) {
    options.argv.push_back("--jobs=" + job->second);
  }
  try {
    std::istringstream steps(base::run_captured(options, "", kPatience).output);
    for (std::string id, name; steps >> id && std::getline(steps >> std::ws, name);) {
      if (name == run) {
        options.argv = {"scancel", "--signal=TERM", id};
        base::run_captured(options, "", kPatience);
      }
    }
  } catch (const base::RunError&) {  // srun is ended next, and ends the ranks its own way
  }
}

Rendezvous slurm_rendezvous(const base::Environment& environment) {
  auto ask = [&](std::vector<std::string> argv) {
    base::SpawnOptions options;
    options.argv = std::move(argv);
    options.environment = environment;
    constexpr std::chrono::seconds kPatience{30};
    base::Captured answer = base::run_captured(options, "", kPatience);
    if (!answer.status.ok() || answer.timed_out) {
      throw base::run_error("Slurm does not answer `{}`: {}", shell_join(options.argv),
                            slurm_complaint(answer));
    }
    return answer.output;
  };
  auto nodes = environment.find("SLURM_JOB_NODELIST");
  if (nodes == environment.end()) {
    throw base::run_error("SLURM_JOB_NODELIST is not set: this is no Slurm allocation");
  }
  std::string names = ask({"scontrol", "show", "hostnames", nodes->second});
  std::string first = names.substr(0, names.find('\n'));
  Rendezvous rendezvous;
  rendezvous.address = value_of(ask({"scontrol", "--oneliner", "show", "node", first}), "NodeAddr");
  if (rendezvous.address.empty()) {
    rendezvous.address = first;
  }
  rendezvous.port = kFirstPort + number_or(environment, "SLURM_JOB_ID", 0) % kPorts;
  return rendezvous;
}

}  // namespace ljtrain::ljperf
