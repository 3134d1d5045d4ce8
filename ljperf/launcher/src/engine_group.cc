#include "launcher/engine_group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{100};
// After one rank's trouble is known: others' may be the cause and still on the way.
constexpr milliseconds kWordsOnTheWay{1500};
// A rank's connection has ended without its last word: its engine should say something by then.
constexpr milliseconds kEngineNotices{15000};
constexpr std::size_t kLastLines = 12;
constexpr int kSignalBase = 128;

struct Process {
  base::ChildProcess child;
  base::UniqueFd input;
};

struct RankState {
  Clock::time_point last_progress = Clock::now();
  Clock::time_point lost;
  int steps = 0;
  bool done = false;
  std::optional<base::Json> error;
};

// Lost peers are seldom the cause.
bool is_lost_peer(const base::Json& error) {
  std::string message = error.value("message", "");
  return error.value("kind", "") == "exception" &&
         (message.find("onnection") != std::string::npos ||
          message.find("peer") != std::string::npos);
}

class EngineGroup {
 public:
  EngineGroup(const EngineGroupPlan& plan, EventServer* server, const RankGroupObserver& observer,
              const base::Interrupts& interrupts)
      : plan_(plan),
        server_(server),
        observer_(observer),
        interrupts_(interrupts),
        neighbours_(base::descendants()),
        ranks_(static_cast<std::size_t>(plan.ranks)) {}
  ~EngineGroup() { end_all(); }
  EngineGroup(const EngineGroup&) = delete;
  EngineGroup& operator=(const EngineGroup&) = delete;

  RankGroupResult run(int* exit_code) {
    for (const EngineProcess& process : plan_.processes) {
      start(process);
    }
    while (!result_.has_value()) {
      wait();
      read_events();
      if (interrupts_.arrived()) {
        result_ = RankGroupResult{Outcome::kInterrupted, -1, "interrupted", "", {}};
      }
      check_ranks();
      check_processes();
      check_progress();
      if (observer_.on_tick) {
        observer_.on_tick();
      }
    }
    end_all();
    if (observer_.on_tick) {
      observer_.on_tick();
    }
    if (exit_code != nullptr) {
      *exit_code = exit_code_;
    }
    return *std::move(result_);
  }

 private:
  void start(const EngineProcess& process) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw base::run_error("cannot make a socket pair: {}", std::strerror(errno));
    }
    base::UniqueFd theirs(ends[0]);
    base::UniqueFd ours(ends[1]);
    base::SpawnOptions options;
    options.argv = process.argv;
    options.environment = process.environment;
    options.standard_input = process.input.empty() ? -1 : theirs.get();
    options.standard_output = STDOUT_FILENO;
    options.standard_error = STDERR_FILENO;
    base::UniqueFd log;
    if (!process.log.empty()) {
      log.reset(::open(process.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
      if (!log) {
        throw base::user_error("{}: cannot be written: {}; choose another --output",
                               process.log.string(), std::strerror(errno));
      }
      options.standard_output = log.get();
      options.standard_error = log.get();
    }
    base::ChildProcess child = base::ChildProcess::spawn(options);
    std::string_view rest = process.input;
    while (!rest.empty()) {
      ssize_t count = ::send(ours.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (count <= 0 && errno != EINTR) {
        break;  // it has ended already, and its exit code will say so
      }
      rest.remove_prefix(count > 0 ? static_cast<std::size_t>(count) : 0);
    }
    if (process.ends_input) {
      ours.reset();
    }
    processes_.push_back({std::move(child), std::move(ours)});
  }

  void wait() {
    std::vector<pollfd> polled{{interrupts_.fd(), POLLIN, 0}};
    for (Process& process : processes_) {
      if (!process.child.poll().has_value() && process.child.pidfd() >= 0) {
        polled.push_back({process.child.pidfd(), POLLIN, 0});
      }
    }
    if (server_ != nullptr) {
      server_->add_to(polled);
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(kTick.count()));
  }

  void read_events() {
    if (server_ == nullptr) {
      return;
    }
    server_->serve([&](int number, const base::Json& event) {
      RankState& rank = ranks_[static_cast<std::size_t>(number)];
      std::string kind = event["event"].get<std::string>();
      rank.last_progress = Clock::now();
      rank.steps += kind == "step" ? 1 : 0;
      rank.done = rank.done || kind == "done";
      if (kind == "error" && !rank.error.has_value()) {
        rank.error = event;
      }
      if (observer_.on_event) {
        observer_.on_event(number, event);
      }
    });
  }

  bool all_done() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& r) { return r.done; });
  }

  // A rank that reported an error, or that is gone without a word while its engine goes on.
  void check_ranks() {
    for (std::size_t number = 0; number < ranks_.size() && !result_.has_value(); ++number) {
      RankState& rank = ranks_[number];
      bool lost = !rank.done && server_->closed(static_cast<int>(number));
      if (!lost) {
        rank.lost = Clock::now();
      }
      if (rank.error.has_value()) {
        listen_for(kWordsOnTheWay);
        judge("");
      } else if (lost && Clock::now() - rank.lost > kEngineNotices) {
        judge(fmt::format("the connection to rank {} ended", number));
      }
    }
  }

  // Ends the run when every process has ended well, or when one has not.
  void check_processes() {
    bool all_ended = true;
    for (std::size_t i = 0; i < processes_.size() && !result_.has_value(); ++i) {
      const std::optional<base::ExitStatus>& status = processes_[i].child.poll();
      all_ended = all_ended && status.has_value();
      if (status.has_value() && !status->ok()) {
        exit_code_ = status->signal != 0 ? kSignalBase + status->signal : status->code;
        listen_for(kWordsOnTheWay);
        judge(describe_end(plan_.processes[i], *status));
      }
    }
    if (all_ended && !result_.has_value()) {
      read_events();
      if (all_done()) {
        result_ = RankGroupResult{};
      } else {
        judge(fmt::format("{} ended before all ranks were done", plan_.processes.front().name));
      }
    }
  }

  void listen_for(milliseconds time) {
    Clock::time_point deadline = Clock::now() + time;
    while (server_ != nullptr && Clock::now() < deadline) {
      wait();
      read_events();
    }
  }

  std::string describe_end(const EngineProcess& process, const base::ExitStatus& status) const {
    std::string how = status.signal != 0
                          ? fmt::format("was ended by {}", ::strsignal(status.signal))
                          : fmt::format("ended with exit code {}", status.code);
    std::string sentence = fmt::format("{} {}", process.name, how);
    std::vector<std::string> lines = last_lines_of(process.log, 1);
    if (!process.log.empty() && !lines.empty()) {
      sentence += ": " + lines.back();
    }
    return sentence;
  }

  // The first cause by what is known: a rank's own words, then those of ranks that only lost their
  // peers, then `otherwise`.
  void judge(const std::string& otherwise) {
    int chosen = -1;
    for (std::size_t number = 0; number < ranks_.size(); ++number) {
      const std::optional<base::Json>& error = ranks_[number].error;
      bool better = error.has_value() &&
                    (chosen < 0 || (is_lost_peer(*ranks_[static_cast<std::size_t>(chosen)].error) &&
                                    !is_lost_peer(*error)));
      chosen = better ? static_cast<int>(number) : chosen;
    }
    RankGroupResult result;
    result.outcome = Outcome::kFailed;
    result.sentence = otherwise;
    if (chosen >= 0) {
      const base::Json& error = *ranks_[static_cast<std::size_t>(chosen)].error;
      std::string kind = error.value("kind", "");
      result.failing_rank = chosen;
      result.sentence = error.value("message", "the worker reported an error without words");
      result.traceback = error.value("traceback", "");
      result.outcome = kind == "bad_input" ? Outcome::kBadInput : Outcome::kFailed;
      if (kind != "bad_input" && kind != "non_finite_loss") {
        result.sentence =
            fmt::format("rank {}{} failed: {}", chosen, where(chosen), result.sentence);
      }
      exit_code_ = std::max(exit_code_, 1);
    }
    if (result.outcome == Outcome::kFailed) {
      add_log(result);
    }
    result_ = std::move(result);
  }

  std::string where(int rank) const {
    const std::optional<RankIdentity>& identity = server_->identity(rank);
    return identity.has_value() && !identity->host.empty() ? fmt::format(" on {}", identity->host)
                                                           : "";
  }

  void add_log(RankGroupResult& result) const {
    if (result.failing_rank >= 0) {
      result.last_lines = last_lines_of(
          plan_.log_folder / fmt::format("rank-{}.log", result.failing_rank), kLastLines);
    }
    for (const EngineProcess& process : plan_.processes) {
      if (result.last_lines.empty() && !process.log.empty()) {
        result.last_lines = last_lines_of(process.log, kLastLines);
      }
    }
  }

  // Ranks that do not report in time, or make no step.
  void check_progress() {
    Clock::time_point now = Clock::now();
    for (std::size_t number = 0; number < ranks_.size() && !result_.has_value(); ++number) {
      RankState& rank = ranks_[number];
      bool reported = server_->identity(static_cast<int>(number)).has_value();
      milliseconds limit = rank.steps > 0 ? plan_.step_timeout : plan_.start_timeout;
      if (rank.done || now - rank.last_progress <= limit) {
        continue;
      }
      RankGroupResult result;
      result.outcome = Outcome::kFailed;
      result.failing_rank = static_cast<int>(number);
      double seconds = std::chrono::duration<double>(limit).count();
      result.sentence =
          !reported ? fmt::format("rank {} did not report within {:g} s; was it started?", number,
                                  seconds)
          : rank.steps > 0
              ? fmt::format("no step within --step-timeout {:g} s after step {}: rank {}{} hangs",
                            seconds, rank.steps, number, where(static_cast<int>(number)))
              : fmt::format("no first step within {:g} s: rank {}{} hangs", seconds, number,
                            where(static_cast<int>(number)));
      add_log(result);
      result_ = std::move(result);
    }
  }

  bool any_left() {
    return std::any_of(processes_.begin(), processes_.end(),
                       [](Process& p) { return !p.child.poll().has_value(); });
  }

  void wait_for_end(milliseconds patience) {
    Clock::time_point deadline = Clock::now() + patience;
    while (any_left() && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(10));
    }
  }

  // Engines end their ranks, on other hosts too, when they are asked to end; killed, they could not.
  void end_all() {
    bool asked = false;
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      const std::function<void()>& ask = plan_.processes[i].ask_ranks_to_end;
      if (ask && !processes_[i].child.poll().has_value()) {
        ask();
        asked = true;
      }
    }
    if (asked) {
      wait_for_end(plan_.grace / 2);
    }
    for (Process& process : processes_) {
      process.child.signal(SIGTERM);
    }
    wait_for_end(plan_.grace);
    processes_.clear();
    base::end_descendants(milliseconds(2000), neighbours_);
  }

  const EngineGroupPlan& plan_;
  EventServer* server_;
  const RankGroupObserver& observer_;
  const base::Interrupts& interrupts_;
  std::set<pid_t> neighbours_;
  std::vector<RankState> ranks_;
  std::vector<Process> processes_;
  std::optional<RankGroupResult> result_;
  int exit_code_ = 0;
};

}  // namespace

RankGroupResult run_engine(const EngineGroupPlan& plan, EventServer* server,
                           const RankGroupObserver& observer, const base::Interrupts& interrupts,
                           int* exit_code) {
  base::become_subreaper();
  return EngineGroup(plan, server, observer, interrupts).run(exit_code);
}

}  // namespace ljtrain::ljperf
