#include "base/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include "base/errors.h"

namespace ljtrain::base {
namespace {

using Clock = std::chrono::steady_clock;

// All that the child needs between fork and exec, prepared before fork: afterwards only
// async-signal-safe calls are allowed.
struct Prepared {
  std::string program;
  std::vector<char*> argv;
  std::vector<std::string> assignments;
  std::vector<char*> envp;
  cpu_set_t cpus;
};

std::string find_program(const std::string& name, const Environment& environment) {
  if (name.find('/') != std::string::npos) {
    return name;
  }
  auto path = environment.find("PATH");
  std::string rest = path == environment.end() ? "/usr/local/bin:/usr/bin:/bin" : path->second;
  while (!rest.empty()) {
    std::size_t colon = rest.find(':');
    std::string candidate = rest.substr(0, colon) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return name;
}

Prepared prepare(const SpawnOptions& options) {
  Prepared prepared;
  prepared.program = find_program(options.argv.at(0), options.environment);
  for (const std::string& argument : options.argv) {
    prepared.argv.push_back(const_cast<char*>(argument.c_str()));
  }
  prepared.argv.push_back(nullptr);
  for (const auto& [name, value] : options.environment) {
    prepared.assignments.push_back(name + "=" + value);
  }
  for (std::string& assignment : prepared.assignments) {
    prepared.envp.push_back(assignment.data());
  }
  prepared.envp.push_back(nullptr);
  CPU_ZERO(&prepared.cpus);
  for (int cpu : options.cpus) {
    CPU_SET(static_cast<std::size_t>(cpu), &prepared.cpus);
  }
  return prepared;
}

// Runs in the child. Reports errno through `report` when it cannot become the program.
[[noreturn]] void become(const SpawnOptions& options, const Prepared& prepared, int report,
                         pid_t parent) {
  auto give_up = [report] {
    int reason = errno;
    [[maybe_unused]] ssize_t written = ::write(report, &reason, sizeof reason);
    ::_exit(127);
  };
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(127);  // the parent died before the line above took effect
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number : {SIGINT, SIGTERM, SIGPIPE, SIGHUP, SIGQUIT, SIGCHLD}) {
    ::signal(number, SIG_DFL);
  }
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const std::array<int, 3> standard{options.standard_input, options.standard_output,
                                    options.standard_error};
  for (int target = 0; target < 3; ++target) {
    int source = standard.at(static_cast<std::size_t>(target));
    int from = source < 0 ? null : source;
    if (from < 0 || ::dup2(from, target) < 0) {
      give_up();
    }
  }
  for (int fd : options.inherited_fds) {
    ::fcntl(fd, F_SETFD, 0);
  }
  if (!options.cpus.empty() && ::sched_setaffinity(0, sizeof prepared.cpus, &prepared.cpus) != 0) {
    give_up();
  }
  if (!options.working_directory.empty() && ::chdir(options.working_directory.c_str()) != 0) {
    give_up();
  }
  ::execve(prepared.program.c_str(), prepared.argv.data(), prepared.envp.data());
  give_up();
  ::_exit(127);
}

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw run_error("cannot make a pipe: {}", std::strerror(errno));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

ExitStatus decode(int status) {
  ExitStatus result;
  if (WIFSIGNALED(status)) {
    result.signal = WTERMSIG(status);
  } else {
    result.code = WEXITSTATUS(status);
  }
  return result;
}

}  // namespace

Environment current_environment() {
  Environment result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view assignment = *entry;
    std::size_t equals = assignment.find('=');
    if (equals != std::string_view::npos && equals > 0) {
      result[std::string(assignment.substr(0, equals))] = assignment.substr(equals + 1);
    }
  }
  return result;
}

ChildProcess ChildProcess::spawn(const SpawnOptions& options) {
  Prepared prepared = prepare(options);
  Pipe report = make_pipe();
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid < 0) {
    throw run_error("cannot start {}: {}", options.argv.at(0), std::strerror(errno));
  }
  if (pid == 0) {
    become(options, prepared, report.write.get(), parent);
  }
  report.write.reset();
  int reason = 0;
  ssize_t count = 0;
  do {
    count = ::read(report.read.get(), &reason, sizeof reason);
  } while (count < 0 && errno == EINTR);
  if (count == sizeof reason) {
    ::waitpid(pid, nullptr, 0);
    throw run_error("cannot start {}: {}", prepared.program, std::strerror(reason));
  }
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return ChildProcess(pid, std::move(pidfd));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      status_(other.status_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    status_ = other.status_;
  }
  return *this;
}

ChildProcess::~ChildProcess() { end(); }

void ChildProcess::end() {
  if (pid_ <= 0 || status_.has_value()) {
    return;
  }
  signal_group(SIGKILL);
  signal(SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  status_ = decode(status);
}

const std::optional<ExitStatus>& ChildProcess::poll() {
  int status = 0;
  if (pid_ > 0 && !status_.has_value() && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = decode(status);
  }
  return status_;
}

void ChildProcess::signal(int number) const {
  if (pid_ > 0 && !status_.has_value()) {
    ::kill(pid_, number);
  }
}

void ChildProcess::signal_group(int number) const {
  if (pid_ > 0) {
    ::killpg(pid_, number);
  }
}

Captured run_captured(SpawnOptions options, const std::string& input,
                      std::chrono::milliseconds timeout, int stop_fd) {
  // A socket, so that a program that does not read its input gives an error here and no SIGPIPE.
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw run_error("cannot make a socket pair: {}", std::strerror(errno));
  }
  Pipe in{UniqueFd(ends[0]), UniqueFd(ends[1])};
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  options.standard_input = in.read.get();
  options.standard_output = out.write.get();
  options.standard_error = err.write.get();
  ChildProcess child = ChildProcess::spawn(options);
  in.read.reset();
  out.write.reset();
  err.write.reset();
  ::fcntl(in.write.get(), F_SETFL, O_NONBLOCK);

  Captured result;
  std::size_t sent = 0;
  Clock::time_point deadline = Clock::now() + timeout;
  while (out.read || err.read) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      result.timed_out = true;
      child.signal_group(SIGKILL);
      break;
    }
    if (sent == input.size()) {
      in.write.reset();
    }
    std::array<pollfd, 4> polled{{{in.write.get(), POLLOUT, 0},
                                  {out.read.get(), POLLIN, 0},
                                  {err.read.get(), POLLIN, 0},
                                  {stop_fd, POLLIN, 0}}};
    ::poll(polled.data(), polled.size(), static_cast<int>(left.count()));
    if (polled[3].revents != 0) {
      result.stopped = true;
      child.signal_group(SIGKILL);
      break;
    }
    if (in.write && polled[0].revents != 0) {
      ssize_t count =
          ::send(in.write.get(), input.data() + sent, input.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN && errno != EINTR) {
        in.write.reset();  // it does not read its input
      }
      sent += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    auto drain = [](UniqueFd& fd, short revents, std::string& text) {
      if (!fd || revents == 0) {
        return;
      }
      std::array<char, 65536> buffer{};
      ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
      if (count > 0) {
        text.append(buffer.data(), static_cast<std::size_t>(count));
      } else if (count == 0 || errno != EINTR) {
        fd.reset();
      }
    };
    drain(out.read, polled[1].revents, result.output);
    drain(err.read, polled[2].revents, result.errors);
  }
  while (!child.poll().has_value()) {
    if (Clock::now() > deadline) {
      result.timed_out = true;
      child.signal_group(SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  result.status = *child.poll();
  return result;
}

void become_subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::set<pid_t> descendants(const std::set<pid_t>& spared) {
  std::map<pid_t, pid_t> parent_of;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) {
    return {};
  }
  while (dirent* entry = ::readdir(folder)) {
    auto pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid <= 0) {
      continue;
    }
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    std::getline(stat, line);
    // "pid (name) state parent ...": the name may hold anything, its end is the last ')'.
    std::size_t name_end = line.rfind(')');
    if (name_end != std::string::npos && name_end + 4 < line.size()) {
      parent_of[pid] = static_cast<pid_t>(std::strtol(line.c_str() + name_end + 4, nullptr, 10));
    }
  }
  ::closedir(folder);
  std::set<pid_t> found;
  for (const auto& [pid, parent] : parent_of) {
    pid_t ancestor = pid;
    for (std::size_t hops = 0;
         hops < parent_of.size() && ancestor > 1 && !spared.contains(ancestor); ++hops) {
      auto next = parent_of.find(ancestor);
      ancestor = next == parent_of.end() ? 0 : next->second;
      if (ancestor == ::getpid()) {
        found.insert(pid);
        break;
      }
    }
  }
  return found;
}

int end_descendants(std::chrono::milliseconds patience, const std::set<pid_t>& spared) {
  std::set<pid_t> seen;
  Clock::time_point deadline = Clock::now() + patience;
  do {
    std::set<pid_t> alive;
    for (pid_t pid : descendants(spared)) {
      if (::waitpid(pid, nullptr, WNOHANG) != pid) {  // reaps what has ended already
        alive.insert(pid);
      }
    }
    if (alive.empty()) {
      break;
    }
    for (pid_t pid : alive) {
      ::kill(pid, SIGKILL);
    }
    seen.insert(alive.begin(), alive.end());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (Clock::now() < deadline);
  return static_cast<int>(seen.size());
}

}  // namespace ljtrain::base
