#include "launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <sstream>

#include "base/errors.h"
#include "base/process.h"
#include "base/text.h"

namespace ljtrain::cnp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long ljperf may take to end its ranks and write its record once it was interrupted.
constexpr std::chrono::seconds kGrace{30};
constexpr std::chrono::seconds kOrphansGrace{5};
constexpr milliseconds kTick{200};
constexpr std::size_t kMostOutput = std::size_t{256} << 20;
constexpr std::size_t kErrorTail = 8192;

bool is_program(const std::filesystem::path& file) {
  std::error_code error;
  return std::filesystem::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0;
}

std::optional<std::filesystem::path> in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty() && is_program(std::filesystem::path(folder) / name)) {
      return std::filesystem::path(folder) / name;
    }
  }
  return std::nullopt;
}

// The last line of what ljperf said; its own begin with its name.
std::string complaint_in(const std::string& errors) {
  std::istringstream lines(errors);
  std::string last;
  std::string own;
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kOwn = "ljperf: ";
    if (line.starts_with(kOwn)) {
      own = line.substr(kOwn.size());
    } else if (line.find_first_not_of(" \t\r") != std::string::npos) {
      last = line;
    }
  }
  return base::printable(own.empty() ? last : own, 400);
}

// A pipe's reading end, drained as data comes.
class Drain {
 public:
  // `most` bytes are kept: the first ones, or, with `tail`, the last ones.
  Drain(std::size_t most, bool tail) : most_(most), tail_(tail) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw base::RunError("cannot make a pipe: too many files are open");
    }
    read_.reset(ends[0]);
    write_.reset(ends[1]);
    ::fcntl(read_.get(), F_SETFL, O_NONBLOCK);
  }

  int write_end() const { return write_.get(); }
  void close_write_end() { write_.reset(); }
  int fd() const { return read_.get(); }
  bool overflowed() const { return overflowed_; }
  const std::string& text() const { return text_; }

  void read() {
    std::array<char, 65536> buffer{};
    ssize_t count = 0;
    while (read_ && (count = ::read(read_.get(), buffer.data(), buffer.size())) > 0) {
      text_.append(buffer.data(), static_cast<std::size_t>(count));
      if (text_.size() > most_) {
        overflowed_ = true;
        text_ = tail_ ? text_.substr(text_.size() - most_) : text_.substr(0, most_);
      }
    }
    if (count == 0) {
      read_.reset();
    }
  }

 private:
  std::size_t most_;
  bool tail_;
  bool overflowed_ = false;
  base::UniqueFd read_;
  base::UniqueFd write_;
  std::string text_;
};

// Waits for the child while its output is read. Returns why it was told to stop, if it was.
enum class Stopped { kNo, kInterrupted, kTooLong };

Stopped wait_for(base::ChildProcess& child, Drain& output, Drain& errors, double timeout_s,
                 const base::Interrupts& interrupts) {
  Stopped stopped = Stopped::kNo;
  auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(timeout_s));
  while (!child.poll().has_value()) {
    std::array<pollfd, 4> polled{{{interrupts.fd(), POLLIN, 0},
                                  {child.pidfd(), POLLIN, 0},
                                  {output.fd(), POLLIN, 0},
                                  {errors.fd(), POLLIN, 0}}};
    ::poll(polled.data(), polled.size(), static_cast<int>(kTick.count()));
    output.read();
    errors.read();
    bool interrupted = interrupts.arrived();
    bool late = Clock::now() > deadline;
    if (stopped == Stopped::kNo && (interrupted || late)) {
      stopped = interrupted ? Stopped::kInterrupted : Stopped::kTooLong;
      deadline = Clock::now() + kGrace;
      child.signal(SIGINT);
    } else if (late) {
      child.signal_group(SIGKILL);
      child.signal(SIGKILL);
    }
  }
  output.read();
  errors.read();
  return stopped;
}

void read_record_into(RunOutcome& outcome, const std::string& text) {
  try {
    outcome.record = from_json(base::JsonDocument::parse(text, "ljperf's answer"));
  } catch (const base::UserError& error) {
    outcome.sentence = error.what();
  }
}

void judge(RunOutcome& outcome, const base::ExitStatus& status, Stopped stopped,
           const Drain& output, const std::string& complaint, double timeout_s) {
  if (!output.text().empty() && !output.overflowed()) {
    read_record_into(outcome, output.text());
  }
  if (stopped == Stopped::kInterrupted ||
      (status.code == base::kInterrupted && status.signal == 0 && stopped == Stopped::kNo)) {
    outcome.end = RunEnd::kInterrupted;
    outcome.sentence = "interrupted";
    return;
  }
  if (stopped == Stopped::kTooLong) {
    outcome.sentence = fmt::format("not done after {:.0f} s (--run-timeout)", timeout_s);
    return;
  }
  bool usable = outcome.record.has_value() && outcome.record->status == Status::kCompleted &&
                outcome.record->step_time_s.median.has_value() &&
                outcome.record->tokens_per_s.value_or(0) > 0;
  if (status.ok() && usable) {
    outcome.end = RunEnd::kCompleted;
    return;
  }
  outcome.refused = status.signal == 0 && status.code == base::kBadInput;
  if (outcome.record.has_value() && outcome.record->failure.has_value()) {
    outcome.sentence = outcome.record->failure->sentence;
  } else if (!complaint.empty()) {
    outcome.sentence = complaint;
  } else if (status.signal != 0) {
    outcome.sentence = fmt::format("ljperf was ended by signal {}", status.signal);
  } else if (outcome.sentence.empty()) {
    outcome.sentence = fmt::format("ljperf ended with {} and printed no record", status.code);
  }
}

// Runs it to its end and judges that; nothing that it has started stays. RunError: not started.
template <typename Judge>
void run_to_end(const std::vector<std::string>& argv,
                const std::map<std::string, std::string>& variables, double timeout_s,
                const base::Interrupts& interrupts, const Judge& judge_end) {
  std::set<pid_t> neighbours = base::descendants();
  Drain output(kMostOutput, /*tail=*/false);
  Drain errors(kErrorTail, /*tail=*/true);
  base::SpawnOptions options;
  options.argv = argv;
  options.environment = base::current_environment();
  for (const auto& [name, value] : variables) {
    options.environment[name] = value;
  }
  options.standard_output = output.write_end();
  options.standard_error = errors.write_end();
  base::ChildProcess child = base::ChildProcess::spawn(options);
  output.close_write_end();
  errors.close_write_end();
  Stopped stopped = wait_for(child, output, errors, timeout_s, interrupts);
  judge_end(*child.poll(), stopped, output, complaint_in(errors.text()));
  base::end_descendants(kOrphansGrace, neighbours);
}

// What an engine takes for an image's name (https://github.com/distribution/reference): no option.
bool is_image_reference(const std::string& text) {
  constexpr std::size_t kLongest = 500;
  auto is_part = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("._-/:@").find(static_cast<char>(c)) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= kLongest &&
         std::isalnum(static_cast<unsigned char>(text.front())) != 0 &&
         std::ranges::all_of(text, is_part);
}

}  // namespace

std::filesystem::path find_ljperf(const std::filesystem::path& wanted) {
  if (!wanted.empty()) {
    if (!is_program(wanted)) {
      throw base::user_error("--ljperf {}: no such program", wanted.string());
    }
    return std::filesystem::absolute(wanted);
  }
  std::error_code error;
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && is_program(self.parent_path() / "ljperf")) {
    return self.parent_path() / "ljperf";
  }
  std::optional<std::filesystem::path> found = in_path("ljperf");
  if (!found.has_value()) {
    throw base::UserError(
        "ljperf is neither beside this program nor in PATH; run `make build`, or name it with "
        "--ljperf PATH");
  }
  return *found;
}

Program program_in(const std::string& name, const std::string& where,
                   const std::filesystem::path& ljperf, bool own_ljperf,
                   const std::filesystem::path& records) {
  std::filesystem::path folder(where);
  if (is_program(folder / "bin/python")) {
    folder = std::filesystem::absolute(folder);
    bool own = own_ljperf && is_program(folder / "bin/ljperf");
    return {{(own ? folder / "bin/ljperf" : ljperf).string(), "benchmark"},
            {"--python", (folder / "bin/python").string()},
            /*in_container=*/false};
  }
  std::error_code error;
  if (std::filesystem::exists(folder, error)) {
    throw base::user_error("--env {}={}: no virtual environment, it has no bin/python", name,
                           where);
  }
  if (!is_image_reference(where)) {
    throw base::user_error("--env {}={}: is neither a virtual environment nor an image's name",
                           name, base::printable(where, 200));
  }
  for (const char* engine : {"podman", "docker"}) {
    if (std::optional<std::filesystem::path> program = in_path(engine)) {
      std::string mount = fmt::format("{}:/records", records.string());
      return {{program->string(), "run", "--rm", "--init", "--volume", mount, "--env",
               "LJTRAIN_RECORDS=/records", where, "ljperf", "benchmark"},
              {},
              /*in_container=*/true};
    }
  }
  throw base::user_error(
      "--env {}={}: no such virtual environment, and no podman or docker is installed to run it as "
      "an image",
      name, where);
}

RunOutcome launch(const std::vector<std::string>& argv,
                  const std::map<std::string, std::string>& variables, double timeout_s,
                  const base::Interrupts& interrupts) {
  RunOutcome outcome;
  Clock::time_point began = Clock::now();
  try {
    run_to_end(argv, variables, timeout_s, interrupts,
               [&](const base::ExitStatus& status, Stopped stopped, const Drain& output,
                   const std::string& complaint) {
                 judge(outcome, status, stopped, output, complaint, timeout_s);
               });
  } catch (const base::RunError& error) {
    outcome.sentence = error.what();
  }
  outcome.wall_s = std::chrono::duration<double>(Clock::now() - began).count();
  return outcome;
}

DryRun try_dry_run(std::vector<std::string> argv,
                   const std::map<std::string, std::string>& variables, double timeout_s,
                   const base::Interrupts& interrupts) {
  DryRun answer;
  argv.emplace_back("--dry-run");
  try {
    run_to_end(argv, variables, timeout_s, interrupts,
               [&](const base::ExitStatus& status, Stopped stopped, const Drain&,
                   const std::string& complaint) {
                 answer.interrupted = stopped == Stopped::kInterrupted;
                 answer.accepted = status.ok() && stopped == Stopped::kNo;
                 answer.sentence =
                     stopped == Stopped::kTooLong
                         ? fmt::format("its dry run is not done after {:.0f} s", timeout_s)
                     : !complaint.empty() ? complaint
                                          : fmt::format("its dry run ends with {}", status.code);
               });
  } catch (const base::RunError& error) {
    answer.sentence = error.what();
  }
  return answer;
}

}  // namespace ljtrain::cnp
