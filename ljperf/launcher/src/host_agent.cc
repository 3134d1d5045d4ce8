#include "launcher/host_agent.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "base/errors.h"
#include "base/interrupts.h"

namespace ljtrain::ljperf {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{200};
// torchrun gives its workers a while to end, too.
constexpr milliseconds kGrace{5000};
constexpr std::size_t kLargestTask = std::size_t{4} << 20;
constexpr int kSignalBase = 128;

std::string read_line() {
  std::string line;
  char byte = 0;
  while (line.size() < kLargestTask) {
    ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0 || byte == '\n') {
      break;
    }
    line += byte;
  }
  return line;
}

// Whether the launcher is still there. What it sends after the task is ignored.
bool input_ended() {
  std::array<char, 256> ignored{};
  ssize_t count = ::read(STDIN_FILENO, ignored.data(), ignored.size());
  return count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
}

void end(base::ChildProcess& child) {
  child.signal_group(SIGTERM);
  Clock::time_point deadline = Clock::now() + kGrace;
  while (!child.poll().has_value() && Clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(20));
  }
}

}  // namespace

std::string to_line(const HostTask& task) {
  base::Json json{{"argv", task.argv},
                  {"environment", task.environment},
                  {"working_directory", task.working_directory.string()}};
  return json.dump() + "\n";
}

HostTask parse_task(const std::string& line) {
  HostTask task;
  try {
    base::Json json = base::Json::parse(line);
    task.argv = json.at("argv").get<std::vector<std::string>>();
    task.environment = json.at("environment").get<base::Environment>();
    task.working_directory = json.at("working_directory").get<std::string>();
  } catch (const base::Json::exception& error) {
    throw base::user_error("host-agent: its standard input holds no task: {}", error.what());
  }
  if (task.argv.empty()) {
    throw base::user_error("host-agent: the task has no program");
  }
  return task;
}

int run_host_agent() {
  HostTask task = parse_task(read_line());
  base::Interrupts interrupts;
  base::become_subreaper();
  base::SpawnOptions options;
  options.argv = task.argv;
  options.environment = base::current_environment();
  for (const auto& [name, value] : task.environment) {
    options.environment[name] = value;
  }
  std::error_code error;
  if (std::filesystem::is_directory(task.working_directory, error)) {
    options.working_directory = task.working_directory;
  }
  options.standard_output = STDOUT_FILENO;
  options.standard_error = STDERR_FILENO;
  std::optional<base::ChildProcess> child = base::ChildProcess::spawn(options);
  while (!child->poll().has_value()) {
    std::array<pollfd, 3> polled{
        {{STDIN_FILENO, POLLIN, 0}, {interrupts.fd(), POLLIN, 0}, {child->pidfd(), POLLIN, 0}}};
    ::poll(polled.data(), polled.size(), static_cast<int>(kTick.count()));
    if (interrupts.arrived() || (polled[0].revents != 0 && input_ended())) {
      end(*child);
      break;
    }
  }
  std::optional<base::ExitStatus> status = child->poll();
  child.reset();  // kills what is left of it
  base::end_descendants(milliseconds(2000));
  if (!status.has_value()) {
    return kSignalBase + SIGKILL;
  }
  return status->signal != 0 ? kSignalBase + status->signal : status->code;
}

}  // namespace ljtrain::ljperf
