#include "benchmark/run_benchmark.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/interrupts.h"
#include "base/json.h"
#include "benchmark/plan.h"
#include "benchmark/progress.h"
#include "benchmark/python_environment.h"
#include "benchmark/report.h"
#include "benchmark/run_collector.h"
#include "benchmark/run_environment.h"
#include "benchmark/summary.h"
#include "cnp/record_file.h"
#include "launch.h"
#include "launcher/engines.h"
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
      {"operator", "DeepSpeed's operator (compiled once, a minute)"},
      {"gemm_peak", "measuring the peak of matrix products"},
      {"model", "building the model"},
      {"train", "first step"}};
  auto found = kWords.find(phase);
  return found == kWords.end() ? "starting" : found->second;
}

base::OrderedJson worker_of(const BenchmarkPlan& plan, const std::filesystem::path& folder) {
  base::OrderedJson worker = plan.worker;
  worker["training_arguments"]["output_dir"] = (folder / "trainer").string();
  return worker;
}

RankGroupPlan group_plan(const BenchmarkPlan& plan, const std::filesystem::path& folder) {
  base::OrderedJson worker = worker_of(plan, folder);
  std::filesystem::path worker_file = folder / "worker.json";
  base::write_file_atomically(worker_file, worker.dump(2) + "\n");
  RankGroupPlan group;
  group.argv = {plan.python.string(), "-m", "ljtrain.worker", worker_file.string()};
  group.environment = plan.environment();
  group.placement = plan.placement;
  group.log_folder = folder;
  group.step_timeout =
      std::chrono::milliseconds(static_cast<long>(plan.options.step_timeout * 1e3));
  group.start_timeout = std::max(group.start_timeout, group.step_timeout);
  return group;
}

// One run: launches the ranks, collects what they report. Whatever goes wrong is in the result.
RankGroupResult execute(const BenchmarkPlan& plan, const std::filesystem::path& folder,
                        RunCollector& collector, Progress& progress,
                        const base::Interrupts& interrupts, int run,
                        std::vector<RankIdentity>& identities) {
  RankGroupObserver observer;
  observer.on_event = [&](int rank, const base::Json& event) {
    if (rank == 0 && event["event"] == "phase") {
      progress.phase(phase_words(event.value("name", "")));
    }
    std::optional<cnp::Step> step = collector.add(rank, event);
    if (!step.has_value()) {
      return;
    }
    if (collector.tokens_per_step() != plan.tokens_per_step()) {
      throw base::run_error("a step trained {} tokens, not the {} of the plan",
                            collector.tokens_per_step(), plan.tokens_per_step());
    }
    progress.step(step->step, step->seconds, step->loss,
                  static_cast<double>(plan.tokens_per_step()) / step->seconds);
  };
  observer.on_tick = [&] { progress.tick(); };
  try {
    std::filesystem::create_directories(folder);
    if (runs_by_engine(plan.options.launch, base::current_environment())) {
      return run_by_engine(plan, folder, worker_of(plan, folder), observer, interrupts, run,
                           identities);
    }
    return run_ranks(group_plan(plan, folder), observer, interrupts);
  } catch (const base::UserError& refused) {
    return {Outcome::kBadInput, -1, refused.what(), "", {}};
  } catch (const std::exception& failure) {
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

// Where each rank was, as it said itself.
void add_hosts(cnp::Record& record, const std::vector<RankIdentity>& identities) {
  if (identities.empty()) {
    return;
  }
  std::vector<std::string> hosts;
  record.configuration.binding.clear();
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    hosts.push_back(identities[rank].host);
    record.configuration.binding.push_back(
        fmt::format("rank {}: cpus {}", rank, fmt::join(identities[rank].cpus, ",")));
  }
  record.configuration.extra["launcher"]["hosts"] = hosts;
}

// All runs, until one does not complete. What each measured is in the record.
RankGroupResult run_all(const BenchmarkPlan& plan, const std::filesystem::path& output,
                        const base::Interrupts& interrupts, cnp::Record& record) {
  RankGroupResult result;
  std::vector<RankIdentity> identities;
  Progress progress(plan.options.repeat, plan.steps_per_run);
  for (int run = 0; run < plan.options.repeat && result.outcome == Outcome::kCompleted; ++run) {
    progress.start_run(run);
    RunCollector collector(plan.ranks, plan.on_gpus ? "cuda" : "cpu");
    result = execute(plan, output / fmt::format("run-{}", run + 1), collector, progress, interrupts,
                     run, identities);
    if (result.outcome == Outcome::kBadInput && run == 0) {
      break;
    }
    if (result.outcome != Outcome::kCompleted) {
      mark(record, result);
    }
    add_run(record, plan, collector);
    add_hosts(record, identities);
  }
  return result;
}

// Writes the record. Returns its file, or why there is none.
std::pair<std::optional<std::filesystem::path>, std::string> store(
    const std::filesystem::path& folder, const cnp::Record& record) {
  try {
    return {cnp::write_record(folder, record), ""};
  } catch (const std::exception& failure) {
    return {std::nullopt, failure.what()};
  }
}

int run_plan(const BenchmarkPlan& plan) {
  const BenchmarkOptions& options = plan.options;
  std::filesystem::path records = writable_records_folder();
  base::Interrupts interrupts;
  OutputFolder output(options.output);
  cnp::Record record = start_record(plan);
  print_start(plan, record);

  RankGroupResult result = run_all(plan, output.path() / record.record_id, interrupts, record);
  if (result.outcome == Outcome::kBadInput && record.runs.empty()) {
    if (options.verbose && !result.traceback.empty()) {
      say(stderr, "{}\n", result.traceback);
    }
    throw base::UserError(result.sentence);
  }
  finish_record(record, plan);
  auto [file, trouble] = store(records, record);
  std::FILE* out = people(options);
  say(out, "{}", result_table(record));
  if (record.status == cnp::Status::kFailed) {
    output.keep();
  }
  if (record.failure.has_value()) {
    explain_failure(record, result, options, output.path());
  }
  if (file.has_value()) {
    say(out, "\nrecord: {}\n", file->string());
  } else {
    say(stderr, "ljperf: the record could not be kept: {}\n", trouble);
  }
  say(out, "{}\n", last_line(record));
  bool printed = !options.json || say(stdout, "{}\n", cnp::to_json(record).dump(2));
  if (!printed) {
    say(stderr, "ljperf: standard output cannot be written\n");
  }
  int code = exit_code_of(record.status);
  return code == base::kDone && !(file.has_value() && printed) ? base::kFailed : code;
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
  const base::Environment environment = base::current_environment();
  if (runs_elsewhere(options.launch, environment)) {
    return benchmark_elsewhere(options);
  }
  check(options);
  BenchmarkOptions here = options;
  here.launch = settled(options.launch, environment);
  BenchmarkPlan plan = make_plan(here);
  if (options.dry_run) {
    fmt::print("{}\n", options.json ? to_json(plan).dump(2) : describe(plan));
    return base::kDone;
  }
  return plan.options.launch.node_rank.value_or(0) > 0 ? run_other_node(plan) : run_plan(plan);
}

}  // namespace ljtrain::ljperf
