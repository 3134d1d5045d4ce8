#include "launcher/rank_group.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/errors.h"
#include "event_reader.h"
#include "launcher/hardware.h"

namespace ljtrain::ljperf {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{100};
// How long the ranks may take to end by themselves after one has failed: its own error may still be
// on the way.
constexpr milliseconds kGrace{1000};
// How long a rank may take to print its stack when asked.
constexpr milliseconds kStackDump{700};
constexpr std::size_t kLastLines = 12;
constexpr const char* kAddress = "127.0.0.1";

struct Rank {
  base::ChildProcess process;
  EventReader events;
  Clock::time_point last_progress;
  int steps = 0;
  bool done = false;
  std::optional<base::Json> error;
};

// A port that is free now. The ranks' own store binds it a moment later; should another process be
// quicker, the ranks fail with "address in use", which run_ranks answers by another try.
int free_port() {
  base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, kAddress, &address.sin_addr);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!fd || ::bind(fd.get(), generic, size) != 0 || ::getsockname(fd.get(), generic, &size) != 0) {
    throw base::run_error("no free port on {}: {}", kAddress, std::strerror(errno));
  }
  return ntohs(address.sin_port);
}

std::string join(const std::vector<int>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ", "));
}

class RankGroup {
 public:
  RankGroup(const RankGroupPlan& plan, const RankGroupObserver& observer,
            const base::Interrupts& interrupts)
      : plan_(plan),
        observer_(observer),
        interrupts_(interrupts),
        port_(free_port()),
        oom_kills_(cgroup_oom_kills()),
        neighbours_(base::descendants()) {}
  ~RankGroup() {
    end_all();
    remove_deepspeed_shared_memory(kAddress, port_, world_size());
  }
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  RankGroupResult run() {
    start();
    while (!result_.has_value()) {
      wait_for_something();
      read_events();
      check_interrupt();
      check_ends();
      check_progress();
      if (observer_.on_tick) {
        observer_.on_tick();
      }
    }
    end_all();
    return *std::move(result_);
  }

 private:
  int world_size() const { return static_cast<int>(plan_.placement.size()); }
  std::filesystem::path log_of(int rank) const {
    return plan_.log_folder / fmt::format("rank-{}.log", rank);
  }

  void start() {
    for (int rank = 0; rank < world_size(); ++rank) {
      start_rank(rank);
    }
  }

  void start_rank(int rank) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw base::run_error("cannot make a pipe: {}", std::strerror(errno));
    }
    base::UniqueFd read_end(ends[0]);
    base::UniqueFd write_end(ends[1]);
    ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
    std::filesystem::path log = log_of(rank);
    base::UniqueFd output(
        ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
    if (!output) {
      throw base::user_error("{}: cannot be written: {}; choose another --output", log.string(),
                             std::strerror(errno));
    }
    base::SpawnOptions options;
    options.argv = plan_.argv;
    options.environment = plan_.environment;
    options.environment["RANK"] = std::to_string(rank);
    options.environment["LOCAL_RANK"] = std::to_string(rank);
    options.environment["WORLD_SIZE"] = std::to_string(world_size());
    options.environment["LOCAL_WORLD_SIZE"] = std::to_string(world_size());
    options.environment["MASTER_ADDR"] = kAddress;
    options.environment["MASTER_PORT"] = std::to_string(port_);
    options.environment["LJTRAIN_EVENT_FD"] = std::to_string(write_end.get());
    options.cpus = plan_.placement[static_cast<std::size_t>(rank)];
    options.standard_output = output.get();
    options.standard_error = output.get();
    options.inherited_fds = {write_end.get()};
    ranks_.push_back(Rank{base::ChildProcess::spawn(options), EventReader(std::move(read_end)),
                          Clock::now(), 0, /*done=*/!plan_.reports, std::nullopt});
  }

  void wait_for_something() {
    std::vector<pollfd> polled{{interrupts_.fd(), POLLIN, 0}};
    for (Rank& rank : ranks_) {
      if (!rank.events.closed()) {
        polled.push_back({rank.events.fd(), POLLIN, 0});
      }
      if (!rank.process.poll().has_value() && rank.process.pidfd() >= 0) {
        polled.push_back({rank.process.pidfd(), POLLIN, 0});
      }
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(kTick.count()));
  }

  void read_events() {
    for (int number = 0; number < world_size(); ++number) {
      Rank& rank = ranks_[static_cast<std::size_t>(number)];
      rank.events.read([&](const base::Json& event) {
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
  }

  void check_interrupt() {
    if (interrupts_.arrived() && !result_.has_value()) {
      result_ = RankGroupResult{Outcome::kInterrupted, -1, "interrupted", "", {}};
    }
  }

  // Ends the run when every rank has ended well, or when one has not.
  void check_ends() {
    if (result_.has_value()) {
      return;
    }
    // First who has ended, then what those wrote last: the other way round, a rank that ends in
    // between would be judged without its last words.
    std::vector<bool> ended;
    for (Rank& rank : ranks_) {
      ended.push_back(rank.process.poll().has_value());
    }
    if (std::find(ended.begin(), ended.end(), true) != ended.end()) {
      read_events();
    }
    for (std::size_t number = 0; number < ranks_.size(); ++number) {
      Rank& rank = ranks_[number];
      bool ended_badly = ended[number] && !(rank.process.poll()->ok() && rank.done);
      if (ended_badly || rank.error.has_value()) {
        give_others_time();
        judge_failure();
        return;
      }
    }
    if (std::find(ended.begin(), ended.end(), false) == ended.end()) {
      result_ = RankGroupResult{};
    }
  }

  // One rank's death often shows first as another's broken connection: wait a moment for the first
  // cause.
  void give_others_time() {
    Clock::time_point deadline = Clock::now() + kGrace;
    while (Clock::now() < deadline) {
      bool all_ended = std::all_of(ranks_.begin(), ranks_.end(), [](Rank& rank) {
        return rank.process.poll().has_value() && rank.events.closed();
      });
      if (all_ended) {
        break;
      }
      wait_for_something();
      read_events();
    }
    read_events();
  }

  // Chooses the rank that failed first by what is known: one killed by a signal, then one that says
  // what its own trouble was, then one that only lost its peers, then one that ended without a
  // word.
  void judge_failure() {
    int chosen = -1;
    int best = 0;
    for (int number = 0; number < world_size(); ++number) {
      int weight = weight_of(ranks_[static_cast<std::size_t>(number)]);
      if (weight > best) {
        best = weight;
        chosen = number;
      }
    }
    Rank& rank = ranks_[static_cast<std::size_t>(std::max(chosen, 0))];
    RankGroupResult result;
    result.outcome = Outcome::kFailed;
    result.failing_rank = chosen;
    result.last_lines = last_lines_of(log_of(std::max(chosen, 0)), kLastLines);
    if (rank.error.has_value() && !killed_by_signal(rank)) {
      std::string kind = rank.error->value("kind", "");
      result.sentence = rank.error->value("message", "the worker reported an error without words");
      result.traceback = rank.error->value("traceback", "");
      if (kind == "bad_input") {
        result.outcome = Outcome::kBadInput;
        result.last_lines.clear();
      } else if (kind != "non_finite_loss") {
        result.sentence = fmt::format("rank {} failed: {}", chosen, result.sentence);
      }
    } else {
      result.sentence = describe_end(chosen, rank);
    }
    result_ = std::move(result);
  }

  static bool killed_by_signal(Rank& rank) {
    return rank.process.poll().has_value() && rank.process.poll()->signal != 0;
  }

  static int weight_of(Rank& rank) {
    if (rank.error.has_value()) {
      std::string kind = rank.error->value("kind", "");
      std::string message = rank.error->value("message", "");
      bool lost_peer = kind == "exception" && (message.find("Connection") != std::string::npos ||
                                               message.find("connection") != std::string::npos ||
                                               message.find("peer") != std::string::npos);
      return lost_peer ? 2 : 4;
    }
    const std::optional<base::ExitStatus>& status = rank.process.poll();
    if (!status.has_value() || (status->ok() && rank.done)) {
      return 0;
    }
    constexpr int kSignalCodes = 128;  // how programs that caught a signal end
    return status->signal == SIGABRT                            ? 3
           : status->signal != 0 || status->code > kSignalCodes ? 5
                                                                : 1;
  }

  std::string describe_end(int number, Rank& rank) {
    base::ExitStatus status = rank.process.poll().value_or(base::ExitStatus{});
    std::string when = rank.steps > 0  ? fmt::format("after step {}", rank.steps)
                       : plan_.reports ? "before its first step"
                                       : "while the script ran";
    if (status.signal == SIGKILL) {
      return fmt::format("rank {} was killed {} {}", number, why_killed(), when);
    }
    if (status.signal == SIGTERM || status.signal == SIGINT || status.signal == SIGHUP) {
      return fmt::format("rank {} was ended from outside, by {} {}", number,
                         ::strsignal(status.signal), when);
    }
    if (status.signal != 0) {
      return fmt::format("rank {} crashed with {} {}", number, ::strsignal(status.signal), when);
    }
    if (!plan_.reports) {
      return fmt::format("rank {} ended with exit code {}", number, status.code);
    }
    return fmt::format("rank {} ended with exit code {} {} without saying why", number, status.code,
                       when);
  }

  // What is known about a SIGKILL that was not ours.
  std::string why_killed() const {
    std::optional<std::uint64_t> kills = cgroup_oom_kills();
    if (!kills.has_value() || !oom_kills_.has_value()) {
      return "by SIGKILL (perhaps for lack of memory: the kernel does not say here)";
    }
    return *kills > *oom_kills_ ? "by the kernel for lack of memory (use a smaller --micro-batch, "
                                  "--seq or --scale, or "
                                  "fewer --ranks)"
                                : "by SIGKILL (not by the kernel's out-of-memory killer)";
  }

  // A rank that makes no progress in time is hung: ask all for their stacks, say who stands where.
  void check_progress() {
    if (result_.has_value() || !plan_.reports) {
      return;
    }
    Clock::time_point now = Clock::now();
    auto late = std::find_if(ranks_.begin(), ranks_.end(), [&](Rank& rank) {
      milliseconds limit = rank.steps > 0 ? plan_.step_timeout : plan_.start_timeout;
      return !rank.process.poll().has_value() && now - rank.last_progress > limit;
    });
    if (late == ranks_.end()) {
      return;
    }
    std::vector<int> stopped;
    std::vector<int> behind;
    int fewest = std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) {
                   return a.steps < b.steps;
                 })->steps;
    for (int number = 0; number < world_size(); ++number) {
      Rank& rank = ranks_[static_cast<std::size_t>(number)];
      if (is_stopped(rank.process.pid())) {
        stopped.push_back(number);
      } else if (rank.steps == fewest) {
        behind.push_back(number);
      }
      rank.process.signal(SIGUSR2);  // the worker prints its stack into its log
    }
    std::this_thread::sleep_for(kStackDump);
    RankGroupResult result;
    result.outcome = Outcome::kFailed;
    result.failing_rank = !stopped.empty() ? stopped.front() : behind.front();
    result.sentence = describe_hang(stopped, behind, late->steps);
    result.last_lines = last_lines_of(log_of(result.failing_rank), kLastLines);
    result_ = std::move(result);
  }

  // `steps`: of the rank that is late.
  std::string describe_hang(const std::vector<int>& stopped, const std::vector<int>& behind,
                            int steps) const {
    auto seconds = [](milliseconds limit) { return std::chrono::duration<double>(limit).count(); };
    std::string what =
        steps > 0
            ? fmt::format("no step within --step-timeout {:g} s after step {}",
                          seconds(plan_.step_timeout), steps)
            : fmt::format("no first step within {:g} s (--step-timeout can only lengthen this)",
                          seconds(plan_.start_timeout));
    if (!stopped.empty()) {
      return fmt::format("{}: rank {} is stopped (SIGSTOP, a debugger or a frozen cgroup)", what,
                         join(stopped));
    }
    return fmt::format("{}: hung in rank {} (its stack is in its log)", what, join(behind));
  }

  static bool is_stopped(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    std::getline(stat, line);
    std::size_t name_end = line.rfind(')');
    char state =
        name_end != std::string::npos && name_end + 2 < line.size() ? line[name_end + 2] : '?';
    return state == 'T' || state == 't';
  }

  void end_all() {
    // An interrupted rank gets a moment to leave by itself; its children get none.
    for (Rank& rank : ranks_) {
      rank.process.signal_group(SIGTERM);
      rank.process.signal_group(SIGCONT);
    }
    Clock::time_point deadline = Clock::now() + plan_.grace;
    auto any_left = [this] {
      return std::any_of(ranks_.begin(), ranks_.end(),
                         [](Rank& rank) { return !rank.process.poll().has_value(); });
    };
    while (any_left() && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    ranks_.clear();  // kills what is left of each group
    base::end_descendants(milliseconds(2000), neighbours_);
  }

  const RankGroupPlan& plan_;
  const RankGroupObserver& observer_;
  const base::Interrupts& interrupts_;
  int port_;
  std::optional<std::uint64_t> oom_kills_;
  std::set<pid_t> neighbours_;  // descendants that are not of this run
  std::vector<Rank> ranks_;
  std::optional<RankGroupResult> result_;
};

}  // namespace

RankGroupResult run_ranks(const RankGroupPlan& plan, const RankGroupObserver& observer,
                          const base::Interrupts& interrupts) {
  base::become_subreaper();
  constexpr int kTries = 3;
  for (int attempt = 1;; ++attempt) {
    RankGroupResult result = RankGroup(plan, observer, interrupts).run();
    bool port_taken = plan.reports && result.outcome == Outcome::kFailed &&
                      (result.sentence.find("EADDRINUSE") != std::string::npos ||
                       result.sentence.find("address already in use") != std::string::npos);
    if (!port_taken || attempt == kTries) {
      return result;
    }
  }
}

std::vector<std::string> last_lines_of(const std::filesystem::path& log, std::size_t count) {
  constexpr std::streamoff kTail = 16384;
  constexpr std::size_t kWidth = 200;
  std::ifstream stream(log, std::ios::binary);
  stream.seekg(0, std::ios::end);
  std::streamoff size = stream.tellg();
  stream.seekg(std::max<std::streamoff>(0, size - kTail));
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    std::erase_if(line, [](unsigned char c) { return c < 0x20 && c != '\t'; });
    if (line.find_first_not_of(" \t") != std::string::npos) {
      lines.push_back(line.substr(0, kWidth));
    }
  }
  if (lines.size() > count) {
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(count));
  }
  return lines;
}

std::vector<std::filesystem::path> remove_deepspeed_shared_memory(const std::string& address,
                                                                  int port, int ranks) {
  // The name is built in DeepSpeed 0.19.8, csrc/cpu/comm/shm.cpp, shm_initialize().
  std::vector<std::filesystem::path> removed;
  for (int rank = 0; rank < ranks; ++rank) {
    std::filesystem::path file = fmt::format("/dev/shm/deepspeed_allreduce_buffer_{}_{}_{}_{}",
                                             ::getuid(), address, port, rank);
    std::error_code error;
    if (std::filesystem::remove(file, error)) {
      removed.push_back(file);
    }
  }
  return removed;
}

}  // namespace ljtrain::ljperf
