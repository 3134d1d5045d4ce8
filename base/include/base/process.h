// Child processes that cannot outlive their parent unnoticed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace ljtrain::base {

// A whole environment: name -> value.
using Environment = std::map<std::string, std::string>;
Environment current_environment();

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] is looked up in the child's PATH
  Environment environment;
  std::filesystem::path working_directory;  // empty: the parent's
  std::vector<int> cpus;                    // logical CPUs to bind to; empty: the parent's
  int standard_input = -1;                  // -1: /dev/null
  int standard_output = -1;                 // -1: /dev/null
  int standard_error = -1;                  // -1: /dev/null
  std::vector<int> inherited_fds;           // stay open in the child under the same number
};

// How a process ended.
struct ExitStatus {
  int code = 0;    // exit code, when signal == 0
  int signal = 0;  // the signal that ended it, or 0
  bool ok() const { return code == 0 && signal == 0; }
};

// One child in a session (and process group) of its own. The kernel kills it when the thread that
// spawned it dies. The destructor kills the group and reaps the child.
class ChildProcess {
 public:
  // Throws RunError when the program cannot be started, with the reason.
  static ChildProcess spawn(const SpawnOptions& options);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // Readable (poll) once the process has ended; -1 on kernels without pidfd.
  int pidfd() const { return pidfd_.get(); }
  // The status once it has ended, without waiting. Reaps it.
  const std::optional<ExitStatus>& poll();
  void signal(int number) const;        // the process
  void signal_group(int number) const;  // all that share its process group

 private:
  ChildProcess(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  void end();

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<ExitStatus> status_;
};

// The result of a program run to its end.
struct Captured {
  ExitStatus status;
  bool timed_out = false;
  bool stopped = false;
  std::string output;
  std::string errors;
};

// Runs a program with `input` on its standard input and keeps what it prints. After `timeout` it is
// killed, and also when `stop_fd` (of Interrupts, say) becomes readable, which is left unread.
// Throws RunError when it cannot be started.
Captured run_captured(SpawnOptions options, const std::string& input,
                      std::chrono::milliseconds timeout, int stop_fd = -1);

// Makes orphans of our children ours, so that descendants() finds them.
void become_subreaper();
// Every process that descends from this one, but those in `spared` and what descends from them.
std::set<pid_t> descendants(const std::set<pid_t>& spared = {});
// Kills and reaps descendants(spared) until none is left or `patience` has passed. Returns how many
// were found. `spared` is what was there before: a shell may have started helpers and then become
// this program.
int end_descendants(std::chrono::milliseconds patience, const std::set<pid_t>& spared = {});

}  // namespace ljtrain::base
