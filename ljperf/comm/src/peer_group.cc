#include "peer_group.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/errors.h"
#include "launcher/rank_group.h"

namespace ljtrain::ljperf {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kLastLines = 8;
// One rank's death shows at its peers, too, as errors or as a launcher that ends them: time for the
// cause to arrive.
constexpr milliseconds kGrace{700};
constexpr milliseconds kQuitPatience{3000};

bool is_stopped(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  std::size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() &&
         (line[name_end + 2] == 'T' || line[name_end + 2] == 't');
}

std::string words_of(const std::vector<std::size_t>& numbers) {
  return fmt::format("rank{} {}", numbers.size() == 1 ? "" : "s", fmt::join(numbers, ", "));
}

}  // namespace

void PeerGroup::start(base::Environment environment, const std::vector<std::vector<int>>& cpus) {
  base::UniqueFd output(
      ::open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!output) {
    throw base::user_error("{}: cannot be written: {}", log_.string(), std::strerror(errno));
  }
  for (const auto& [name, value] : library_.environment) {
    environment[name] = value;
  }
  environment["LJPERF_COMM_LIBRARY"] = library_.title();
  base::SpawnOptions options;
  options.argv = library_.argv;
  options.standard_output = output.get();
  options.standard_error = output.get();
  std::size_t count = library_.launcher ? 1 : ranks_.size();
  for (std::size_t rank = 0; rank < count; ++rank) {
    options.environment = environment;
    if (!library_.launcher) {
      options.environment["LJPERF_COMM_RANK"] = std::to_string(rank);
      options.cpus = cpus[rank];
    }
    try {
      processes_.push_back(base::ChildProcess::spawn(options));
    } catch (const base::RunError& error) {
      skip(error.what());
      return;
    }
  }
}

void PeerGroup::connect(int rank, int pid, base::UniqueFd socket, std::string unread) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= ranks_.size()) {
    return;
  }
  Rank& entry = ranks_[static_cast<std::size_t>(rank)];
  entry.socket = std::move(socket);
  entry.unread = std::move(unread);
  entry.pid = pid;
}

std::vector<int> PeerGroup::fds() const {
  std::vector<int> result;
  for (const Rank& rank : ranks_) {
    if (rank.socket && !rank.ready && !rank.closed) {
      result.push_back(rank.socket.get());
    }
  }
  for (const base::ChildProcess& process : processes_) {
    result.push_back(process.pidfd());
  }
  return result;
}

void PeerGroup::watch_start(SharedMemoryFiles& files) {
  std::size_t ready = 0;
  for (Rank& rank : ranks_) {
    std::string line;
    if (!rank.ready && rank.socket && take_line(rank, line)) {
      if (line.starts_with("skip ")) {
        skip(line.substr(line.find(' ') + 1));
        return;
      }
      if (line.starts_with("error ")) {
        fail_start(line.substr(line.find(' ') + 1));
        return;
      }
      rank.ready = line == "ready";
    }
    ready += rank.ready ? 1 : 0;
  }
  if (ready == ranks_.size()) {
    note_files(files);
    state_ = State::kReady;
  } else if (process_ended()) {
    std::vector<std::string> lines = last_lines_of(log_, 1);
    fail_start(fmt::format("{}{}{}", what_ended(), lines.empty() ? "" : ": ",
                           lines.empty() ? "" : lines.back()));
  }
}

// "rank 1 was ended by SIGKILL"
std::string PeerGroup::what_ended() {
  for (std::size_t rank = 0; rank < processes_.size() && !library_.launcher; ++rank) {
    if (processes_[rank].poll().has_value()) {
      return fmt::format("rank {} {} before it was ready", rank, how_ended(rank));
    }
  }
  return "its launcher ended before its ranks were ready";
}

void PeerGroup::fail_start(const std::string& reason) {
  skip(reason);
  start_failed_ = true;
}

void PeerGroup::skip(const std::string& reason) {
  state_ = State::kSkipped;
  skip_reason_ = reason;
  processes_.clear();
}

bool PeerGroup::take_line(Rank& rank, std::string& line) {
  for (;;) {
    std::size_t end = rank.unread.find('\n');
    if (end != std::string::npos) {
      line = rank.unread.substr(0, end);
      rank.unread.erase(0, end + 1);
      return true;
    }
    if (rank.closed) {
      return false;
    }
    std::array<char, 4096> buffer{};
    ssize_t count = ::recv(rank.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) {
      rank.unread.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      rank.closed = true;
    } else if (errno == EAGAIN) {
      return false;
    }
  }
}

std::vector<std::string> PeerGroup::ask(const std::string& line, const std::string& doing,
                                        milliseconds timeout, const base::Interrupts& interrupts) {
  std::string text = line + "\n";
  for (Rank& rank : ranks_) {
    // The line is short and the socket empty: it goes as a whole or the rank is gone, which is
    // noticed below.
    [[maybe_unused]] ssize_t sent =
        ::send(rank.socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  std::vector<std::string> answers(ranks_.size());
  Clock::time_point deadline = Clock::now() + timeout;
  for (;;) {
    std::vector<pollfd> polled{{interrupts.fd(), POLLIN, 0}};
    bool failed = false;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (answers[rank].empty() && !take_line(ranks_[rank], answers[rank])) {
        failed = failed || ranks_[rank].closed;
        polled.push_back({ranks_[rank].socket.get(), POLLIN, 0});
      }
      failed = failed || (!answers[rank].empty() && !answers[rank].starts_with("ok"));
    }
    if (failed) {
      fail(doing, answers);
    }
    if (polled.size() == 1) {
      break;
    }
    auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      hang(doing, answers, timeout);
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(left));
    if (interrupts.arrived()) {
      throw Interrupted();
    }
  }
  for (std::string& answer : answers) {
    answer = answer.substr(std::min<std::size_t>(3, answer.size()));
  }
  return answers;
}

void PeerGroup::await_more(std::vector<std::string>& answers) {
  Clock::time_point deadline = Clock::now() + kGrace;
  while (Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(10));
    bool all = true;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      all = (!answers[rank].empty() || take_line(ranks_[rank], answers[rank]) ||
             ranks_[rank].closed) &&
            all;
    }
    for (base::ChildProcess& process : processes_) {
      process.poll();
    }
    if (all && process_ended()) {
      return;
    }
  }
}

// Chooses the rank that was first by what is known: one that ended by a signal, then one that ended
// without a word, then one that says what happened to it.
void PeerGroup::fail(const std::string& doing, const std::vector<std::string>& first) {
  std::vector<std::size_t> silent;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (first[rank].empty() && ranks_[rank].closed) {
      silent.push_back(rank);  // before its launcher could end the others
    }
  }
  std::vector<std::string> answers = first;
  await_more(answers);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (silent.empty() && answers[rank].empty() && ranks_[rank].closed) {
      silent.push_back(rank);
    }
  }
  std::vector<std::string> lines = last_lines_of(log_, kLastLines);
  for (std::size_t rank : silent) {
    bool signalled = !library_.launcher && processes_[rank].poll().has_value() &&
                     processes_[rank].poll()->signal != 0;
    if (signalled || rank == silent.back()) {
      throw GroupFailure(fmt::format("rank {} of {} (process {}) {} during {}", rank,
                                     library_.title(), ranks_[rank].pid, how_ended(rank), doing),
                         lines);
    }
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!answers[rank].empty() && !answers[rank].starts_with("ok")) {
      std::string what =
          answers[rank].starts_with("error ") ? answers[rank].substr(6) : answers[rank];
      throw GroupFailure(
          fmt::format("rank {} of {} failed during {}: {}", rank, library_.title(), doing, what),
          lines);
    }
  }
  throw GroupFailure(fmt::format("{} failed during {}", library_.title(), doing), lines);
}

void PeerGroup::hang(const std::string& doing, const std::vector<std::string>& answers,
                     milliseconds timeout) {
  std::vector<std::size_t> stopped;
  std::vector<std::size_t> silent;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (answers[rank].empty()) {
      silent.push_back(rank);
    }
    if (is_stopped(ranks_[rank].pid)) {
      stopped.push_back(rank);
    }
  }
  std::string why =
      stopped.empty()
          ? ""
          : fmt::format("; {} stopped (SIGSTOP, a debugger or a frozen cgroup)", words_of(stopped));
  throw GroupFailure(
      fmt::format("{} of {} did not answer within --timeout {:g} s during {}{}", words_of(silent),
                  library_.title(), std::chrono::duration<double>(timeout).count(), doing, why),
      last_lines_of(log_, kLastLines));
}

std::string PeerGroup::how_ended(std::size_t rank) {
  if (library_.launcher) {
    return "ended";  // its launcher knows more: see the last lines
  }
  const std::optional<base::ExitStatus>& status = processes_[rank].poll();
  if (!status.has_value()) {
    return "left";
  }
  return status->signal != 0 ? fmt::format("was ended by SIG{}", ::sigabbrev_np(status->signal))
                             : fmt::format("ended with exit code {}", status->code);
}

bool PeerGroup::process_ended() {
  return std::any_of(processes_.begin(), processes_.end(),
                     [](base::ChildProcess& process) { return process.poll().has_value(); });
}

void PeerGroup::quit() {
  for (Rank& rank : ranks_) {
    if (rank.socket) {
      [[maybe_unused]] ssize_t sent = ::send(rank.socket.get(), "quit\n", 5, MSG_NOSIGNAL);
    }
  }
  Clock::time_point deadline = Clock::now() + kQuitPatience;
  auto any_left = [this] {
    return std::any_of(processes_.begin(), processes_.end(),
                       [](base::ChildProcess& process) { return !process.poll().has_value(); });
  };
  while (any_left() && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  processes_.clear();
}

void PeerGroup::note_files(SharedMemoryFiles& files) const {
  for (const Rank& rank : ranks_) {
    if (rank.pid > 0) {
      files.note_of(rank.pid);
    }
  }
}

}  // namespace ljtrain::ljperf
