// The rank processes of one library: started once, idle between the commands of the orchestrator.
#pragma once

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/interrupts.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "library.h"
#include "shared_memory_files.h"

namespace ljtrain::ljperf {

// A rank died, failed or hung: the run cannot go on.
struct GroupFailure : std::runtime_error {
  GroupFailure(const std::string& sentence, std::vector<std::string> lines)
      : std::runtime_error(sentence), last_lines(std::move(lines)) {}
  std::vector<std::string> last_lines;
};

// Ctrl-C.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

class PeerGroup {
 public:
  enum class State { kStarting, kReady, kSkipped };

  // `log`: what the ranks print. Starts nothing yet.
  PeerGroup(Library library, int ranks, std::filesystem::path log)
      : library_(std::move(library)),
        log_(std::move(log)),
        ranks_(static_cast<std::size_t>(ranks)) {}

  // `environment`: of every rank; `cpus`: each rank's.
  void start(base::Environment environment, const std::vector<std::vector<int>>& cpus);
  // A rank has connected and said who it is.
  void connect(int rank, int pid, base::UniqueFd socket, std::string unread);
  // Looks for news while the group starts.
  void watch_start(SharedMemoryFiles& files);
  // Sends a line to all ranks and returns their answers, without the leading "ok". `doing` is for
  // messages. Throws GroupFailure, Interrupted.
  std::vector<std::string> ask(const std::string& line, const std::string& doing,
                               std::chrono::milliseconds timeout,
                               const base::Interrupts& interrupts);
  // Ends the ranks in order, as far as they do so in time.
  void quit();
  void note_files(SharedMemoryFiles& files) const;

  const Library& library() const { return library_; }
  State state() const { return state_; }
  const std::string& skip_reason() const { return skip_reason_; }
  void skip(const std::string& reason);
  // The same for what should have started: the run has failed.
  void fail_start(const std::string& reason);
  bool start_failed() const { return start_failed_; }
  // To poll while starting.
  std::vector<int> fds() const;

 private:
  struct Rank {
    base::UniqueFd socket;
    std::string unread;
    int pid = 0;
    bool ready = false;
    bool closed = false;
  };

  // Reads what is there; true when `line` holds a whole one.
  static bool take_line(Rank& rank, std::string& line);
  [[noreturn]] void fail(const std::string& doing, const std::vector<std::string>& answers);
  [[noreturn]] void hang(const std::string& doing, const std::vector<std::string>& answers,
                         std::chrono::milliseconds timeout);
  void await_more(std::vector<std::string>& answers);
  std::string how_ended(std::size_t rank);
  bool process_ended();

  Library library_;
  std::filesystem::path log_;
  std::vector<Rank> ranks_;
  std::vector<base::ChildProcess> processes_;  // one a rank, or the launcher
  State state_ = State::kStarting;
  std::string what_ended();
  std::string skip_reason_;
  bool start_failed_ = false;
};

}  // namespace ljtrain::ljperf
