#include "comm/run_comm.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <random>

#include "base/errors.h"
#include "base/interrupts.h"
#include "base/json.h"
#include "comm/explain.h"
#include "comm/results.h"
#include "fleet.h"
#include "launcher/hardware.h"
#include "libraries.h"
#include "measure.h"
#include "report.h"

namespace ljtrain::ljperf {
namespace {

constexpr int kSchemaVersion = 1;

// Removed in the end, whatever happens.
class RunFolder {
 public:
  RunFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ljperf-comm-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw base::user_error("{}: no folder can be made here; set TMPDIR to a writable one",
                             pattern);
    }
    path_ = pattern;
  }
  ~RunFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string now() {
  std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

class Run {
 public:
  explicit Run(CommPlan plan, Hardware hardware)
      : plan_(std::move(plan)), hardware_(std::move(hardware)) {}

  int execute() {
    check_output();
    try {
      for (int ranks : plan_.ranks) {
        run_with(ranks);
      }
      failure_ = any_wrong() ? wrong_words() : failure_;
      status_ = failure_.empty() ? "completed" : "failed";
    } catch (const Interrupted& interrupt) {
      status_ = "interrupted";
      failure_ = interrupt.what();
    } catch (const GroupFailure& failure) {
      status_ = "failed";
      failure_ = failure.what();
      last_lines_ = failure.last_lines;
    }
    return finish();
  }

 private:
  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    std::FILE* people = plan_.options.json ? stderr : stdout;
    fmt::print(people, format, std::forward<Args>(args)...);
    std::fflush(people);
  }

  // Before anything starts, not after minutes of measuring.
  void check_output() const {
    const std::filesystem::path& file = plan_.options.output;
    std::error_code error;
    std::filesystem::path folder = std::filesystem::absolute(file, error).parent_path();
    if (!file.empty() &&
        (::access(folder.c_str(), W_OK) != 0 || std::filesystem::is_directory(file, error))) {
      throw base::user_error(
          "--output {}: cannot be written; name a file in a folder that is writable",
          file.string());
    }
  }

  void run_with(int ranks) {
    Found found = find_libraries(plan_, ranks, hardware_);
    for (const Skipped& skipped : found.skipped) {
      note_skipped(skipped);
    }
    RunFolder folder;
    Fleet fleet(found.libraries, ranks, hardware_, folder.path(), interrupts_);
    for (const Skipped& skipped : fleet.skipped()) {
      note_skipped(skipped);
    }
    for (const PeerGroup* group : fleet.groups()) {
      const Library& library = group->library();
      libraries_[library.title()] = library.detail;
    }
    for (ljperf_comm::Op op : plan_.ops) {
      for (ljperf_comm::Type dtype : plan_.dtypes) {
        say("\n{}, {}, {} ranks on {} core{}\n{}", ljperf_comm::kOpNames[static_cast<int>(op)],
            ljperf_comm::kTypeNames[static_cast<int>(dtype)], ranks, hardware_.cores.size(),
            hardware_.cores.size() == 1 ? "" : "s", table_header());
        note_lacking(fleet, op, dtype);
        run_sizes(fleet, op, dtype, ranks);
      }
    }
    fleet.quit();
  }

  // A library that lacks the operation for this type has no rows: say so.
  void note_lacking(Fleet& fleet, ljperf_comm::Op op, ljperf_comm::Type dtype) {
    for (const PeerGroup* group : fleet.groups()) {
      if (!supports_any(group->library(), op, dtype)) {
        say("{}: skipped: it has no {} of {}\n", group->library().title(),
            ljperf_comm::kOpNames[static_cast<int>(op)],
            ljperf_comm::kTypeNames[static_cast<int>(dtype)]);
      }
    }
  }

  void run_sizes(Fleet& fleet, ljperf_comm::Op op, ljperf_comm::Type dtype, int ranks) {
    std::uint64_t before = 0;
    for (std::uint64_t size : plan_.sizes) {
      std::size_t count = ljperf_comm::count_of(op, dtype, size, ranks);
      std::uint64_t bytes = ljperf_comm::bytes_of(op, dtype, count, ranks);
      if (bytes == before) {  // two small sizes that come to one element a rank
        continue;
      }
      before = bytes;
      std::vector<CommRow> rows =
          measure({op, dtype, bytes, ranks}, fleet.groups(), plan_.options, order_, interrupts_);
      say("{}", table_rows(rows));
      std::move(rows.begin(), rows.end(), std::back_inserter(rows_));
    }
  }

  void note_skipped(const Skipped& skipped) {
    say("{}: {}: {}\n", skipped.library, skipped.start_failed ? "did not start" : "skipped",
        skipped.reason);
    if (skipped.start_failed && failure_.empty()) {
      failure_ = fmt::format("{} did not start: {}", skipped.library, skipped.reason);
    }
    bool known = std::any_of(skipped_.begin(), skipped_.end(), [&](const Skipped& entry) {
      return entry.library == skipped.library;
    });
    if (!known) {
      skipped_.push_back(skipped);
    }
  }

  static bool is_wrong(const CommRow& row) { return row.wrong.value_or(0) > 0; }
  bool any_wrong() const { return std::any_of(rows_.begin(), rows_.end(), is_wrong); }
  std::string wrong_words() const {
    const CommRow& row = *std::find_if(rows_.begin(), rows_.end(), is_wrong);
    return fmt::format(
        "{} computed {} wrong element{} in {} of {} bytes, {}, {} ranks (see the column `wrong`)",
        row.title(), *row.wrong, *row.wrong == 1 ? "" : "s",
        ljperf_comm::kOpNames[static_cast<int>(row.op)], row.bytes,
        ljperf_comm::kTypeNames[static_cast<int>(row.dtype)], row.ranks);
  }

  base::OrderedJson document() const {
    base::OrderedJson rows = base::OrderedJson::array();
    for (const CommRow& row : rows_) {
      rows.push_back(to_json(row));
    }
    base::OrderedJson summary = base::OrderedJson::array();
    for (const CommSummary& entry : summarise(rows_)) {
      summary.push_back(to_json(entry));
    }
    base::OrderedJson skipped = base::OrderedJson::array();
    for (const Skipped& entry : skipped_) {
      skipped.push_back({{"library", entry.library}, {"reason", entry.reason}});
    }
    base::OrderedJson libraries = base::OrderedJson::array();
    for (const auto& [title, detail] : libraries_) {
      libraries.push_back({{"library", title}, {"detail", detail}});
    }
    base::OrderedJson failure = nullptr;
    if (!failure_.empty()) {
      failure = {{"sentence", failure_}, {"last_lines", last_lines_}};
    }
    return {{"schema_version", kSchemaVersion},
            {"status", status_},
            {"failure", failure},
            {"date", started_},
            {"ljperf", LJTRAIN_VERSION},
            {"command_line", plan_.options.command_line},
            {"machine", hardware_.to_json()},
            {"blocks", plan_.options.blocks},
            {"min_time_ms", plan_.options.min_time},
            {"checked", plan_.options.check},
            {"libraries", libraries},
            {"skipped", skipped},
            {"rows", rows},
            {"summary", summary}};
  }

  int finish() {
    say("{}", summary_table(summarise(rows_)));
    if (!rows_.empty()) {
      say("\nTimes are of the slowest rank, the median of {} blocks (+-: half the interquartile "
          "range); GB/s.\n"
          "Bus bandwidth by nccl-tests' factors. A verdict needs {} blocks.\n",
          plan_.options.blocks, kVerdictBlocks);
    }
    if (!failure_.empty()) {
      fmt::print(stderr, "ljperf: {}\n", failure_);
    }
    for (const std::string& line : last_lines_) {
      fmt::print(stderr, "  | {}\n", line);
    }
    std::string text = document().dump(2) + "\n";
    bool written = true;
    if (!plan_.options.output.empty()) {
      try {
        base::write_file_atomically(plan_.options.output, text);
      } catch (const base::UserError& error) {
        fmt::print(stderr, "ljperf: {}\n", error.what());
        written = false;
      }
    }
    if (plan_.options.json) {
      written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
                std::fflush(stdout) == 0 && written;
    }
    return status_ == "interrupted"            ? base::kInterrupted
           : status_ == "completed" && written ? base::kDone
                                               : base::kFailed;
  }

  CommPlan plan_;
  Hardware hardware_;
  base::Interrupts interrupts_;
  std::mt19937 order_{static_cast<std::mt19937::result_type>(plan_.options.seed)};
  std::string started_ = now();
  std::string status_ = "failed";
  std::string failure_;
  std::vector<std::string> last_lines_;
  std::vector<CommRow> rows_;
  std::vector<Skipped> skipped_;
  std::map<std::string, std::string> libraries_;  // title -> detail
};

}  // namespace

int run_comm(const CommOptions& options) {
  Hardware hardware = detect_hardware();
  CommPlan plan = understand(options, hardware.usable_cores());
  if (options.explain) {
    const Explanation explanation = explain_comm(plan, hardware);
    fmt::print("{}", options.json ? explanation.json.dump(2) + "\n" : explanation.text);
    return base::kDone;
  }
  return Run(std::move(plan), std::move(hardware)).execute();
}

}  // namespace ljtrain::ljperf
