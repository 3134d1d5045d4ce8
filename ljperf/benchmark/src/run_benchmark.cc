#include "benchmark/run_benchmark.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <system_error>

#include "base/errors.h"
#include "base/json.h"
#include "benchmark/plan.h"
#include "benchmark/progress.h"
#include "benchmark/python_environment.h"
#include "benchmark/report.h"
#include "benchmark/run_collector.h"
#include "benchmark/run_environment.h"
#include "benchmark/summary.h"
#include "cnp/record_file.h"
#include "launcher/interrupts.h"
#include "launcher/rank_group.h"
#include "output.h"

namespace ljtrain::ljperf {
namespace {

// What the trainings write: the user's --output, or a folder that is kept only when something went
// wrong.
class OutputFolder {
 public:
  explicit OutputFolder(const std::filesystem::path& wanted)
      : path_(wanted), temporary_(wanted.empty()) {
    std::error_code error;
    if (temporary_) {
      std::string pattern =
          (std::filesystem::temp_directory_path(error) / "ljperf-XXXXXX").string();
      if (error || ::mkdtemp(pattern.data()) == nullptr) {
        throw base::user_error("{}: no folder can be made here; name a writable one with --output",
                               pattern);
      }
      path_ = pattern;
      return;
    }
    path_ = std::filesystem::absolute(path_);
    std::filesystem::create_directories(path_, error);
    if (error || ::access(path_.c_str(), W_OK | X_OK) != 0) {
      throw base::user_error("--output {}: not a folder that can be written", path_.string());
    }
  }
  ~OutputFolder() {
    std::error_code error;
    if (temporary_ && !keep_) {
      std::filesystem::remove_all(path_, error);
    }
  }
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  void keep() { keep_ = true; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool temporary_;
  bool keep_ = false;
};

// Fails before anything starts when the record could not be written at the end.
std::filesystem::path writable_records_folder() {
  std::filesystem::path folder = cnp::records_folder();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || ::access(folder.c_str(), W_OK | X_OK) != 0) {
    throw base::user_error(
        "{}: records cannot be written here; set LJTRAIN_RECORDS to a writable folder",
        folder.string());
  }
  return folder;
}

// What a worker does before its first step, for people.
std::string phase_words(const std::string& phase) {
  static const std::map<std::string, std::string> kWords{
      {"import", "importing PyTorch, transformers and the engine"},
      {"operator",
       "loading DeepSpeed's shared-memory operator (compiled once a machine, a minute)"},
      {"gemm_peak", "measuring the peak of matrix products"},
      {"model", "building the model"},
      {"train", "first step"}};
  auto found = kWords.find(phase);
  return found == kWords.end() ? "starting" : found->second;
}

// One run: launches the ranks, collects what they report.
RankGroupResult execute(const BenchmarkPlan& plan, const std::filesystem::path& folder,
                        RunCollector& collector, Progress& progress, const Interrupts& interrupts) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  base::OrderedJson worker = plan.worker;
  worker["training_arguments"]["output_dir"] = (folder / "trainer").string();
  std::filesystem::path worker_file = folder / "worker.json";
  base::write_file_atomically(worker_file, worker.dump(2) + "\n");

  RankGroupPlan group;
  group.argv = {plan.python.string(), "-m", "ljtrain.worker", worker_file.string()};
  group.environment = plan.environment;
  group.placement = plan.placement;
  group.log_folder = folder;
  group.step_timeout =
      std::chrono::milliseconds(static_cast<long>(plan.options.step_timeout * 1e3));

  RankGroupObserver observer;
  observer.on_event = [&](int rank, const base::Json& event) {
    if (rank == 0 && event["event"] == "phase") {
      progress.phase(phase_words(event.value("name", "")));
    }
    std::optional<cnp::Step> step = collector.add(rank, event);
    if (step.has_value()) {
      progress.step(step->step, step->seconds, step->loss,
                    static_cast<double>(collector.tokens_per_step()) / step->seconds);
    }
  };
  observer.on_tick = [&] { progress.tick(); };
  try {
    return run_ranks(group, observer, interrupts);
  } catch (const base::RunError& failure) {
    return {Outcome::kFailed, -1, failure.what(), "", {}};
  }
}

void mark(cnp::Record& record, const RankGroupResult& result) {
  record.status =
      result.outcome == Outcome::kInterrupted ? cnp::Status::kInterrupted : cnp::Status::kFailed;
  cnp::Failure failure;
  failure.sentence = result.sentence;
  if (result.failing_rank >= 0) {
    failure.rank = result.failing_rank;
  }
  failure.last_lines = result.last_lines;
  record.failure = failure;
}

// Where people read: standard output, or standard error when that holds the JSON document.
std::FILE* people(const BenchmarkOptions& options) { return options.json ? stderr : stdout; }

void explain_failure(const cnp::Record& record, const RankGroupResult& result,
                     const BenchmarkOptions& options, const std::filesystem::path& folder) {
  say(stderr, "ljperf: {}\n", record.failure->sentence);
  if (record.status == cnp::Status::kInterrupted) {
    return;
  }
  bool show_lines = options.verbose || result.traceback.empty();
  if (show_lines && !record.failure->last_lines.empty()) {
    say(stderr, "the last lines of rank {}:\n", record.failure->rank.value_or(0));
    for (const std::string& line : record.failure->last_lines) {
      say(stderr, "  | {}\n", line);
    }
  }
  if (options.verbose && !result.traceback.empty()) {
    say(stderr, "{}\n", result.traceback);
  }
  say(stderr, "logs: {}\n", folder.string());
}

void print_start(const BenchmarkPlan& plan, const cnp::Record& record) {
  std::FILE* out = people(plan.options);
  say(out, "{}\n{}\n", first_line(record), configuration_line(record));
  for (const std::string& note : plan.notes) {
    say(out, "note: {}\n", note);
  }
}

int exit_code_of(cnp::Status status) {
  return status == cnp::Status::kCompleted     ? base::kDone
         : status == cnp::Status::kInterrupted ? base::kInterrupted
                                               : base::kFailed;
}

int run_plan(const BenchmarkPlan& plan) {
  const BenchmarkOptions& options = plan.options;
  std::filesystem::path records = writable_records_folder();
  OutputFolder output(options.output);
  Interrupts interrupts;
  cnp::Record record = start_record(plan);
  print_start(plan, record);

  RankGroupResult result;
  {
    Progress progress(options.repeat, plan.steps_per_run, /*quiet=*/false);
    for (int run = 0; run < options.repeat && result.outcome == Outcome::kCompleted; ++run) {
      progress.start_run(run);
      RunCollector collector(plan.ranks);
      result = execute(plan, output.path() / fmt::format("run-{}", run + 1), collector, progress,
                       interrupts);
      if (result.outcome == Outcome::kBadInput) {
        break;
      }
      if (result.outcome != Outcome::kCompleted) {
        mark(record, result);
      }
      add_run(record, plan, collector);
    }
  }
  if (result.outcome == Outcome::kBadInput) {
    if (options.verbose && !result.traceback.empty()) {
      say(stderr, "{}\n", result.traceback);
    }
    throw base::UserError(result.sentence);
  }
  finish_record(record, plan);
  std::filesystem::path file = cnp::write_record(records, record);
  std::FILE* out = people(options);
  say(out, "{}", result_table(record));
  if (record.failure.has_value()) {
    output.keep();
    explain_failure(record, result, options, output.path());
  }
  say(out, "\nrecord: {}\n{}\n", file.string(), last_line(record));
  if (options.json && !say(stdout, "{}\n", cnp::to_json(record).dump(2))) {
    say(stderr, "ljperf: standard output cannot be written; the document is in {}\n",
        file.string());
    return base::kFailed;
  }
  return exit_code_of(record.status);
}

}  // namespace

int run_benchmark(const BenchmarkOptions& options) {
  if (options.env_dump) {
    base::Json answer;
    try {
      answer = ask_environment(find_python(options.python), {{"engine", "deepspeed"}});
    } catch (const base::UserError& error) {
      answer = {{"error", error.what()}};
    }
    fmt::print("{}\n", dump_environment(detect_hardware(), answer).dump(2));
    return base::kDone;
  }
  BenchmarkPlan plan = make_plan(options);
  if (options.dry_run) {
    fmt::print("{}\n", options.json ? to_json(plan).dump(2) : describe(plan));
    return base::kDone;
  }
  return run_plan(plan);
}

}  // namespace ljtrain::ljperf
