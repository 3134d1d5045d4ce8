#include "sweep/run_sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "base/errors.h"
#include "base/interrupts.h"
#include "base/process.h"
#include "base/text.h"
#include "base/units.h"
#include "benchmark/python_environment.h"

namespace ljtrain::ljperf {
namespace {

using base::Json;
using base::OrderedJson;

constexpr int kSchemaVersion = 1;
constexpr int kExpectedPoints = 1;  // beside one for each layer: none recomputed

std::string read_whole(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// What a line of the output says; malformed ones are a UserError.
Json parse_answer(const std::string& line, const std::string& where) {
  try {
    Json answer = Json::parse(line);
    if (answer.at("id").is_string() && answer.at("points").is_array()) {
      return answer;
    }
  } catch (const Json::exception&) {
  }
  throw base::user_error(
      "{}: this is no answer of `ljperf sweep`; remove the line, or choose another --output",
      where);
}

// The answers that are in the file already, by configuration; a later line replaces an earlier one.
std::map<std::string, Json> read_answers(const std::filesystem::path& file) {
  std::map<std::string, Json> answers;
  std::ifstream stream(file);
  std::size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (!line.empty()) {
      Json answer = parse_answer(line, fmt::format("{}:{}", file.string(), number));
      answers[answer["id"].get<std::string>()] = answer;
    }
  }
  return answers;
}

// A file that goes with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    std::string pattern = (std::filesystem::temp_directory_path() / "ljperf-sweep-XXXXXX").string();
    base::UniqueFd fd(::mkstemp(pattern.data()));
    path_ = pattern;
    if (fd.get() < 0) {
      throw base::run_error("cannot write a temporary file in {}",
                            std::filesystem::temp_directory_path().string());
    }
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() {
    std::error_code none;
    std::filesystem::remove(path_, none);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Outcome {
  std::vector<Json> answers;
  bool interrupted = false;
};

// The measuring process, its answers as they come.
class Measuring {
 public:
  Measuring(const SweepOptions& options, const std::filesystem::path& jobs,
            const std::filesystem::path& log) {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw base::run_error("cannot make a pipe");
    }
    answers_ = base::UniqueFd(ends[0]);
    base::UniqueFd theirs(ends[1]);
    base::UniqueFd errors(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    base::SpawnOptions spawn;
    spawn.argv = {find_python(options.python).string(), "-m", "ljtrain.sweep", jobs.string()};
    spawn.environment = base::current_environment();
    spawn.environment["PYTHONSAFEPATH"] = "1";
    spawn.environment["LJTRAIN_ACCL"] = options.gloo ? "0" : "1";
    spawn.environment.erase("CHECKPOINT_OPTIMIZATION");
    spawn.environment.erase("LJTRAIN_MEMORY_LIMIT");
    spawn.standard_output = theirs.get();
    spawn.standard_error = errors.get();
    process_.emplace(base::ChildProcess::spawn(spawn));
  }
  ~Measuring() {
    if (process_.has_value() && !process_->poll().has_value()) {
      process_->signal_group(SIGKILL);  // the forked ranks are of its group
    }
  }
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;

  int fd() const { return answers_.get(); }
  // Reads what is there; false at the end. Whole lines go to `lines`.
  bool read(std::vector<std::string>& lines) {
    std::array<char, 65536> buffer{};
    ssize_t count = ::read(answers_.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      return true;
    }
    if (count <= 0) {
      return false;
    }
    rest_.append(buffer.data(), static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = rest_.find('\n')) != std::string::npos;) {
      lines.push_back(rest_.substr(0, end));
      rest_.erase(0, end + 1);
    }
    return true;
  }

 private:
  base::UniqueFd answers_;
  std::optional<base::ChildProcess> process_;
  std::string rest_;
};

void say(const Json& answer, std::size_t number, std::size_t of) {
  std::string what = answer.contains("error")
                         ? "failed: " + base::printable(answer["error"].get<std::string>())
                         : fmt::format("{} points", answer["points"].size());
  fmt::print(stderr, "ljperf sweep: {} of {}: {}: {} ({:.0f} s)\n", number, of,
             answer["id"].get<std::string>(), what, answer.value("seconds", 0.0));
}

Outcome measure(const SweepOptions& options, const std::vector<SweepJob>& jobs) {
  base::Interrupts interrupts;
  std::string text;
  for (const SweepJob& job : jobs) {
    text += job.json.dump() + "\n";
  }
  TemporaryFile file(text);
  TemporaryFile log("");
  std::ofstream output(options.output, std::ios::app);
  if (!output) {
    throw base::user_error("cannot write {}; choose another --output", options.output.string());
  }
  Outcome outcome;
  Measuring measuring(options, file.path(), log.path());
  std::array<pollfd, 2> waiting{{{measuring.fd(), POLLIN, 0}, {interrupts.fd(), POLLIN, 0}}};
  for (bool open = true; open;) {
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) {
      break;
    }
    if (interrupts.arrived()) {
      outcome.interrupted = true;
      return outcome;
    }
    std::vector<std::string> lines;
    open = waiting[0].revents == 0 || measuring.read(lines);
    for (const std::string& line : lines) {
      Json answer = parse_answer(line, "ljtrain.sweep");
      output << line << std::endl;  // kept, whatever happens next
      outcome.answers.push_back(answer);
      say(answer, outcome.answers.size(), jobs.size());
    }
  }
  if (outcome.answers.size() < jobs.size()) {
    std::string tail = read_whole(log.path());
    std::size_t end = tail.find_last_not_of("\n");
    std::size_t begin = tail.rfind('\n', end);
    std::string last =
        end == std::string::npos ? "it said nothing" : tail.substr(begin + 1, end - begin);
    throw base::run_error(
        "the measuring process ended after {} of {} configurations: {}; run the command again to "
        "go on",
        outcome.answers.size(), jobs.size(), base::printable(last));
  }
  return outcome;
}

OrderedJson row_of(const Json& answer) {
  OrderedJson row = {{"id", answer["id"]}, {"points", answer["points"].size()}};
  row["seconds"] = answer.value("seconds", 0.0);
  row["error"] = answer.contains("error") ? OrderedJson(answer["error"]) : OrderedJson();
  return row;
}

int report(const SweepOptions& options, const std::vector<SweepJob>& jobs,
           const std::map<std::string, Json>& answers, std::size_t already, bool interrupted) {
  std::size_t points = 0;
  std::size_t failed = 0;
  OrderedJson rows = OrderedJson::array();
  for (const SweepJob& job : jobs) {
    auto found = answers.find(job.id);
    if (found != answers.end()) {
      rows.push_back(row_of(found->second));
      bool error = found->second.contains("error");
      failed += error ? 1 : 0;
      points += error ? 0 : found->second["points"].size();
    }
  }
  if (options.json) {
    OrderedJson document = {{"schema_version", kSchemaVersion},
                            {"output", options.output.string()},
                            {"configurations", jobs.size()},
                            {"measured_before", already},
                            {"failed", failed},
                            {"points", points},
                            {"rows", rows}};
    fmt::print("{}\n", document.dump(2));
  } else {
    fmt::print("{} points of {} configurations in {}{}{}\n", points, rows.size() - failed,
               options.output.string(), failed > 0 ? fmt::format(", {} failed", failed) : "",
               already > 0 ? fmt::format(" ({} measured before)", already) : "");
    if (!interrupted && points > 0) {
      fmt::print("next: ljperf calibrate {}\n", options.output.string());
    }
  }
  if (interrupted) {
    return base::kInterrupted;
  }
  return failed > 0 ? base::kFailed : base::kDone;
}

int dry_run(const SweepOptions& options, const std::vector<SweepJob>& jobs) {
  std::int64_t points = 0;
  OrderedJson rows = OrderedJson::array();
  for (const SweepJob& job : jobs) {
    points += job.layers + kExpectedPoints;
    rows.push_back(job.json);
  }
  if (options.json) {
    OrderedJson document = {{"schema_version", kSchemaVersion},
                            {"output", options.output.string()},
                            {"configurations", jobs.size()},
                            {"points", points},
                            {"rows", rows}};
    fmt::print("{}\n", document.dump(2));
    return base::kDone;
  }
  for (const SweepJob& job : jobs) {
    fmt::print("{}\n", job.id);
  }
  fmt::print("{} configurations, {} points; nothing was run\n", jobs.size(), points);
  return base::kDone;
}

}  // namespace

int run_sweep(const SweepOptions& options) {
  std::vector<SweepJob> jobs = draw_jobs(options.grid);
  if (options.dry_run) {
    return dry_run(options, jobs);
  }
  std::map<std::string, Json> answers = read_answers(options.output);
  std::vector<SweepJob> left;
  for (const SweepJob& job : jobs) {
    auto found = answers.find(job.id);
    if (found == answers.end() || found->second.contains("error")) {
      left.push_back(job);
    }
  }
  std::size_t already = jobs.size() - left.size();
  bool interrupted = false;
  if (!left.empty()) {
    Outcome outcome = measure(options, left);
    interrupted = outcome.interrupted;
    for (const Json& answer : outcome.answers) {
      answers[answer["id"].get<std::string>()] = answer;
    }
    // An interrupted run's answers are in the file.
    answers = interrupted ? read_answers(options.output) : std::move(answers);
  }
  return report(options, jobs, answers, already, interrupted);
}

}  // namespace ljtrain::ljperf
