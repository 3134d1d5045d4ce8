#include "launcher/torchrun.h"

#include <sstream>

#include "base/errors.h"
#include "launcher/host_agent.h"
#include "launcher/hosts.h"
#include "launcher/shell.h"

namespace ljtrain::ljperf {
namespace {

std::string with_port(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

// --remote-shell is a program and its own options.
std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  return words;
}

}  // namespace

std::vector<std::string> torchrun_argv(const LaunchOptions& options, const RankCommand& command,
                                       const std::string& run, int node) {
  int nodes = options.node_count();
  std::vector<std::string> argv{command.python.string(), "-m", "torch.distributed.run"};
  auto add = [&argv](const char* name, const std::string& value) {
    argv.emplace_back(fmt::format("{}={}", name, value));
  };
  add("--nnodes", std::to_string(nodes));
  add("--nproc-per-node", std::to_string(command.ranks_per_node));
  add("--rdzv-backend", "c10d");
  add("--rdzv-id", run);
  if (options.hosts.empty()) {
    add("--rdzv-endpoint", "127.0.0.1:0");
    add("--local-addr", "127.0.0.1");
  } else {
    add("--rdzv-endpoint", with_port(options.hosts.front(), options.rendezvous_port));
    // Said, not guessed: torchrun compares host names, and those of containers are often alike.
    add("--rdzv-conf", fmt::format("is_host={}", node == 0 ? 1 : 0));
    add("--local-addr", options.hosts.at(static_cast<std::size_t>(node)));
  }
  add("--max-restarts", std::to_string(options.max_restarts));
  argv.insert(argv.end(), options.launcher_options.begin(), options.launcher_options.end());
  argv.emplace_back("--no-python");
  std::vector<std::string> rank = rank_argv(command);
  argv.insert(argv.end(), rank.begin(), rank.end());
  return argv;
}

std::vector<std::string> reach_argv(const LaunchOptions& options, const RankCommand& command,
                                    int node) {
  std::vector<std::string> agent{command.ljperf.string(), "host-agent"};
  if (options.hosts.empty() || options.node_rank.has_value()) {
    return agent;
  }
  const std::string& host = options.hosts.at(static_cast<std::size_t>(node));
  std::vector<std::string> argv = words_of(options.remote_shell);
  if (argv.empty()) {
    throw base::user_error("--remote-shell is empty; the default is ssh");
  }
  if (argv.front() == "ssh") {  // never ask, never wait long
    argv.insert(argv.end(), {"-o", "BatchMode=yes", "-o", "ConnectTimeout=10"});
  }
  argv.push_back(host);
  // ssh hands its words to a shell there.
  argv.push_back(shell_quote(command.ljperf.string()));
  argv.emplace_back("host-agent");
  return argv;
}

std::vector<EngineProcess> torchrun_processes(const LaunchOptions& options,
                                              const RankCommand& command, const std::string& run) {
  std::vector<EngineProcess> processes;
  int nodes = options.node_count();
  for (int node = 0; node < nodes; ++node) {
    if (options.node_rank.has_value() && *options.node_rank != node) {
      continue;
    }
    EngineProcess process;
    process.name = "torchrun";
    process.argv = {command.ljperf.string(), "host-agent"};
    if (!options.hosts.empty()) {
      const std::string& host = options.hosts.at(static_cast<std::size_t>(node));
      process.name = fmt::format("torchrun on host {}", host);
      if (!options.node_rank.has_value() && !is_this_host(host)) {
        process.argv = reach_argv(options, command, node);
        if (program_in_path(process.argv.front()).empty() &&
            process.argv.front().find('/') == std::string::npos) {
          throw base::user_error(
              "{} is not in PATH, so host {} cannot be reached; install it, name another with "
              "--remote-shell, or start each host's part yourself with --node-rank",
              process.argv.front(), host);
        }
      }
    }
    process.environment = base::current_environment();
    HostTask task;
    task.argv = torchrun_argv(options, command, run, node);
    task.environment = command.environment;
    // Each rank gets the threads of its cores (`ljperf rank`); set, torchrun does not warn about it.
    task.environment.try_emplace("OMP_NUM_THREADS", "1");
    task.working_directory = command.working_directory;
    process.input = to_line(task);
    if (!command.engine_log_folder.empty()) {
      process.log = command.engine_log_folder / fmt::format("torchrun-{}.log", node);
    }
    processes.push_back(std::move(process));
  }
  return processes;
}

}  // namespace ljtrain::ljperf
