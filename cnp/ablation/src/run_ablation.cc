#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "ablation/ablation.h"
#include "base/errors.h"
#include "base/process.h"
#include "base/text.h"
#include "base/units.h"
#include "cnp/record_file.h"
#include "evaluate.h"
#include "launch.h"
#include "report.h"
#include "rows.h"
#include "schedule.h"
#include "state.h"

namespace ljtrain::cnp {
namespace {

constexpr int kWarmupSteps = 6;
// Runs of either side when Base's compilation is chosen, apart from the one that fills its cache.
constexpr int kRaceRuns = 2;
constexpr int kMostBlocks = 1000;
constexpr int kMostRunSteps = 100'000;

bool say(std::FILE* stream, const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stream) == text.size() &&
         std::fflush(stream) == 0;
}

class Session {
 public:
  Session(Ablation ablation, bool json)
      : ablation_(std::move(ablation)),
        rows_(plan_rows(ablation_.options)),
        people_(json ? stderr : stdout),
        terminal_(::isatty(STDERR_FILENO) == 1) {
    ljperf_ = find_ljperf(ablation_.options.ljperf);
    here_.argv = {ljperf_.string(), "benchmark"};
    for (const auto& [name, where] : ablation_.options.environments) {
      programs_[name] = program_in(name, where, ljperf_, name != "base", ablation_.records);
      bool variables = std::ranges::any_of(
          rows_, [&](const Row& row) { return row.environment == name && !row.variables.empty(); });
      if (variables && programs_[name].in_container) {
        throw base::user_error("--env {}={}: variables of an --axis do not reach an image", name,
                               where);
      }
    }
  }

  int run();
  void describe() const;

 private:
  bool ask_first();
  bool warm_up();
  bool race_base();
  void complain_about_base() const;
  bool find_limit();
  bool measure_blocks();
  bool measure_block(std::size_t number);
  const char* reason_to_stop();
  bool run_row(const Row& row, int steps, const std::string& what, std::vector<Measured>& into,
               const std::filesystem::path& records);
  bool warm(const Row& row);
  std::vector<std::string> command(const Row& row, int steps) const;
  double block_cost() const;
  std::vector<std::string> row_ids() const;
  std::vector<RowResult> results() const;
  void progress(const std::string& line);
  void told(const std::string& line);

  Ablation ablation_;
  std::vector<Row> rows_;
  std::FILE* people_;
  bool terminal_;
  std::filesystem::path ljperf_;
  Program here_;
  std::map<std::string, Program> programs_;
  base::Interrupts interrupts_;
};

// The line that is renewed on a terminal; elsewhere nothing, told() says what was measured.
void Session::progress(const std::string& line) {
  if (terminal_) {
    say(stderr, fmt::format("\r{}\033[K", base::fitted(line, 99)));
  }
}

void Session::told(const std::string& line) {
  say(stderr, fmt::format("{}{}\n", terminal_ ? "\r\033[K" : "", line));
}

std::vector<std::string> Session::command(const Row& row, int steps) const {
  const Program& program = row.environment.empty() ? here_ : programs_.at(row.environment);
  std::vector<std::string> argv = program.argv;
  auto add = [&](const std::vector<std::string>& more) {
    argv.insert(argv.end(), more.begin(), more.end());
  };
  add({"--model", ablation_.options.model, "--json", "--steps", std::to_string(steps), "--warmup",
       std::to_string(kRunWarmup)});
  add(program.arguments);
  add(ablation_.options.more);
  add(row.arguments);
  if (row.stock && ablation_.stock_compile) {
    add({"--stock-compile", "full"});
  }
  if (row.limited && ablation_.limit_bytes.has_value()) {
    add({"--memory-limit", std::to_string(*ablation_.limit_bytes)});
  }
  return argv;
}

// One run, kept in `into` and on disk. False: interrupted.
bool Session::run_row(const Row& row, int steps, const std::string& what,
                      std::vector<Measured>& into, const std::filesystem::path& records) {
  std::optional<double> cost = expected_cost(ablation_, row.id, steps);
  progress(fmt::format(
      "{}: {} ... {}", what, row.name,
      cost.has_value() ? "about " + base::format_seconds(*cost) : "for the first time"));
  std::map<std::string, std::string> variables = row.variables;
  variables["LJTRAIN_RECORDS"] = records.string();
  RunOutcome outcome =
      launch(command(row, steps), variables, ablation_.options.run_timeout_s, interrupts_);
  if (outcome.end == RunEnd::kInterrupted) {
    return false;
  }
  Measured run = summarize(row, outcome);
  told(run.completed
           ? fmt::format("{}: {}  {} a step, {:.0f} tokens/s, took {}", what, row.name,
                         base::format_seconds(run.step_s), run.tokens_per_s,
                         base::format_seconds(run.wall_s))
           : fmt::format("{}: {}  FAILED: {}", what, row.name, base::printable(run.sentence, 300)));
  if (outcome.record.has_value() && outcome.record->proxy.is_proxy) {
    const Proxy& proxy = outcome.record->proxy;
    ablation_.proxy =
        fmt::format("{} of {}: hidden size {}, {} of {} layers", proxy.scale, outcome.record->model,
                    proxy.hidden_size, proxy.layers, proxy.of_layers);
  }
  into.push_back(run);
  return true;
}

// A run of the warm-up, unless an earlier start has made it. False: interrupted.
bool Session::warm(const Row& row) {
  bool done =
      std::ranges::any_of(ablation_.warmup, [&](const Measured& run) { return run.row == row.id; });
  if (done) {
    return true;
  }
  bool go_on = run_row(row, kWarmupSteps, "warm-up", ablation_.warmup, ablation_.folder / "warmup");
  save(ablation_);
  return go_on;
}

// Nothing can be compared: the reason is the user's to know at once.
void Session::complain_about_base() const {
  const Measured& run = *std::ranges::find(ablation_.warmup, "base-eager-0", &Measured::row);
  if (run.refused) {
    throw base::user_error("Base is refused: {}", run.sentence);
  }
  throw base::run_error("Base fails, so there is nothing to compare with: {}", run.sentence);
}

// Base with stock torch_compile or without, whichever is faster: decided here, told in the result.
bool Session::race_base() {
  std::map<bool, std::vector<double>> seconds;
  auto one = [&](bool compiled, const std::string& id) {
    Row row = rows_.front();
    row.id = id;
    row.name += compiled ? ", stock torch_compile" : ", eager";
    ablation_.stock_compile = compiled;
    if (!warm(row)) {
      return false;
    }
    const Measured& run = *std::ranges::find(ablation_.warmup, id, &Measured::row);
    if (run.completed && !id.ends_with("cold")) {
      seconds[compiled].push_back(run.step_s);
    }
    return true;
  };
  if (std::ranges::find(ablation_.warmup, rows_.front().id, &Measured::row) !=
      ablation_.warmup.end()) {
    return true;  // decided before an interrupt
  }
  bool go_on = one(true, "base-compiled-cold");
  for (int i = 0; i < kRaceRuns && go_on; ++i) {
    go_on = one(false, fmt::format("base-eager-{}", i)) &&
            one(true, fmt::format("base-compiled-{}", i));
  }
  if (!go_on) {
    return false;
  }
  ablation_.stock_compile = false;
  if (seconds[true].empty() && seconds[false].empty()) {
    complain_about_base();
  }
  if (!seconds[true].empty() && !seconds[false].empty()) {
    ablation_.stock_compile_ratio = median(seconds[false]) / median(seconds[true]);
    ablation_.stock_compile = *ablation_.stock_compile_ratio > 1;
  } else {
    ablation_.stock_compile = seconds[false].empty();
  }
  // What its runs cost, under the row's own name.
  std::string chosen = ablation_.stock_compile ? "base-compiled-" : "base-eager-";
  Measured run = *std::ranges::find_if(ablation_.warmup, [&](const Measured& candidate) {
    return candidate.completed && candidate.row.starts_with(chosen) &&
           !candidate.row.ends_with("cold");
  });
  run.row = rows_.front().id;
  ablation_.warmup.push_back(run);
  save(ablation_);
  return true;
}

// The peaks of everything and nothing checkpointed, and the limit between them.
bool Session::find_limit() {
  auto peaks = peak_rows(rows_);
  if (!peaks.has_value() || ablation_.limit_bytes.has_value()) {
    return true;
  }
  for (const Row& row : {peaks->first, peaks->second}) {
    if (!warm(row)) {
      return false;
    }
  }
  auto peak_of = [&](const std::string& id) {
    return std::ranges::find(ablation_.warmup, id, &Measured::row)->peak_bytes;
  };
  ablation_.full_bytes = peak_of(peaks->first.id);
  ablation_.none_bytes = peak_of(peaks->second.id);
  if (ablation_.full_bytes.has_value() && ablation_.none_bytes.has_value()) {
    ablation_.limit_bytes = memory_limit(*ablation_.full_bytes, *ablation_.none_bytes);
    told(fmt::format("memory limit: {} a rank, between {} and {}",
                     base::format_bytes(static_cast<double>(*ablation_.limit_bytes)),
                     base::format_bytes(static_cast<double>(*ablation_.full_bytes)),
                     base::format_bytes(static_cast<double>(*ablation_.none_bytes))));
  }
  save(ablation_);
  return true;
}

// Asks ljperf by dry runs whether it would take what is planned, so that an option that does not
// exist, or an environment without the engine, is told before anything trains. Of the ladder the
// first row in each environment is asked about, of a grid one point is to be accepted: what only
// some rows are refused for stays theirs. False: interrupted.
bool Session::ask_first() {
  bool ladder = ablation_.options.axes.empty();
  std::set<std::string> asked;
  std::string first_complaint;
  for (const Row& row : rows_) {
    if (ladder && !asked.insert(row.environment).second) {
      continue;
    }
    progress(fmt::format("asking ljperf about {}", row.name));
    std::map<std::string, std::string> variables = row.variables;
    variables["LJTRAIN_RECORDS"] = ablation_.records.string();
    DryRun answer = try_dry_run(command(row, kWarmupSteps), variables,
                                ablation_.options.run_timeout_s, interrupts_);
    progress("");
    if (answer.interrupted) {
      return false;
    }
    if (answer.accepted && !ladder) {
      return true;
    }
    if (answer.accepted) {
      continue;
    }
    if (ladder) {
      throw base::user_error("{} is refused: {}", row.name, answer.sentence);
    }
    if (first_complaint.empty()) {
      first_complaint = fmt::format("{}: {}", row.name, answer.sentence);
    }
  }
  if (!ladder) {
    throw base::user_error("every point of the grid is refused; {}", first_complaint);
  }
  return true;
}

// Fills compile caches, finds what is to be found before the budget starts. False: interrupted.
bool Session::warm_up() {
  bool ladder = ablation_.options.axes.empty();
  if (ladder && !(race_base() && find_limit())) {
    return false;
  }
  for (const Row& row : rows_) {
    if (row.limited && !ablation_.limit_bytes.has_value()) {
      if (!is_given_up(ablation_, row.id)) {
        Measured run;
        run.row = row.id;
        run.sentence = "no memory limit could be found: its peaks were not measured (see warm-up)";
        ablation_.warmup.push_back(run);
      }
      continue;
    }
    if (!warm(row)) {
      return false;
    }
  }
  if (ablation_.steps == 0) {
    ablation_.steps = choose_steps(ablation_, row_ids());
    save(ablation_);
  }
  return true;
}

std::vector<std::string> Session::row_ids() const {
  std::vector<std::string> ids;
  for (const Row& row : rows_) {
    if (!is_given_up(ablation_, row.id)) {
      ids.push_back(row.id);
    }
  }
  return ids;
}

double Session::block_cost() const {
  double cost = 0;
  for (const std::string& id : row_ids()) {
    cost += expected_cost(ablation_, id, ablation_.steps).value_or(0);
  }
  return cost;
}

std::vector<RowResult> Session::results() const {
  std::map<std::string, std::optional<Record>> known;
  return evaluate(ablation_, rows_, [&](const std::string& id) -> std::optional<Record> {
    try {
      return read_record(ablation_.records / (id + ".json"));
    } catch (const base::UserError&) {
      return std::nullopt;
    }
  });
}

// Empty while another block is worth its time.
const char* Session::reason_to_stop() {
  const AblationOptions& options = ablation_.options;
  auto done = static_cast<int>(full_blocks(ablation_, rows_));
  if (options.blocks.has_value() && done >= *options.blocks) {
    return "blocks";
  }
  if (done >= kLeastBlocks && is_narrow(results(), options.until)) {
    return "narrow";
  }
  if (done > 0 && ablation_.spent_s + block_cost() > options.budget_s) {
    return "budget";
  }
  bool ladder = options.axes.empty();
  return row_ids().empty() || (ladder && is_given_up(ablation_, rows_.front().id)) ? "failed" : "";
}

bool Session::measure_block(std::size_t number) {
  if (ablation_.blocks.size() <= number) {
    ablation_.blocks.emplace_back();
  }
  std::size_t place = 0;
  for (std::size_t index : block_order(ablation_.options.seed, number, rows_.size())) {
    const Row& row = rows_[index];
    ++place;
    std::vector<Measured>& block = ablation_.blocks[number];
    bool done = std::ranges::find(block, row.id, &Measured::row) != block.end();
    if (done || is_given_up(ablation_, row.id)) {
      continue;
    }
    double left = std::max(0.0, ablation_.options.budget_s - ablation_.spent_s);
    std::string what = fmt::format("block {} {}/{}, {} left", number + 1, place, rows_.size(),
                                   base::format_seconds(left));
    if (!run_row(row, ablation_.steps, what, block, ablation_.records)) {
      return false;
    }
    ablation_.spent_s += block.back().wall_s;
    save(ablation_);
  }
  return true;
}

bool Session::measure_blocks() {
  // An interrupted block is finished first.
  std::size_t number = full_blocks(ablation_, rows_);
  while (ablation_.blocks.size() > number || *reason_to_stop() == '\0') {
    if (ablation_.blocks.size() <= number) {
      told(fmt::format("block {}: about {} for its {} runs", number + 1,
                       base::format_seconds(block_cost()), row_ids().size()));
    }
    if (!measure_block(number)) {
      return false;
    }
    ++number;
  }
  ablation_.stopped = reason_to_stop();
  return true;
}

int Session::run() {
  if (!ask_first()) {
    say(stderr, "interrupted; nothing was started\n");
    return base::kInterrupted;
  }
  say(people_, fmt::format("ablation {} of {}: {} rows, budget {} after a warm-up\n", ablation_.id,
                           ablation_.options.model, rows_.size(),
                           base::format_seconds(ablation_.options.budget_s)));
  std::error_code error;
  std::filesystem::create_directories(ablation_.folder / "warmup", error);
  if (error) {
    throw base::user_error(
        "{}: cannot be made: {}; set LJTRAIN_RECORDS to a folder that can be written",
        ablation_.folder.string(), error.message());
  }
  save(ablation_);
  bool finished = warm_up();
  if (finished && !ablation_.proxy.empty()) {
    say(people_, fmt::format("PROXY {}\n", ablation_.proxy));
  }
  finished = finished && measure_blocks();
  progress("");
  save(ablation_);
  std::vector<RowResult> found = results();
  base::OrderedJson document = result_json(ablation_, found, !finished);
  base::write_file_atomically(ablation_.folder / "result.json", document.dump(1) + "\n");
  say(people_, (terminal_ ? "\r\033[K\n" : "\n") + result_text(ablation_, found));
  if (!finished) {
    say(stderr, fmt::format("interrupted; go on with: cnp ablate --resume {}\n",
                            ablation_.folder.string()));
  } else {
    say(people_, fmt::format("result: {}\n", (ablation_.folder / "result.json").string()));
  }
  if (people_ == stderr && !say(stdout, document.dump(2) + "\n")) {
    say(stderr, "cnp: standard output cannot be written\n");
    return base::kFailed;
  }
  return !finished                        ? base::kInterrupted
         : has_failures(ablation_, found) ? base::kFailed
                                          : base::kDone;
}

void Session::describe() const {
  for (const Row& row : rows_) {
    std::string variables;
    for (const auto& [name, value] : row.variables) {
      variables += fmt::format("{}={} ", name, value);
    }
    say(stdout,
        fmt::format("{}\n    {}{}{}\n", row.name, variables,
                    fmt::join(command(row, ablation_.options.steps.value_or(kWarmupSteps)), " "),
                    row.limited ? " --memory-limit (found in the warm-up)" : ""));
  }
}

Ablation begin(AblationOptions options) {
  Ablation ablation;
  auto now = std::chrono::system_clock::now();
  ablation.id = new_record_id(options.model, now);
  ablation.created = iso8601_utc(now);
  ablation.records = std::filesystem::absolute(records_folder());
  ablation.folder = ablation.records / "ablations" / ablation.id;
  ablation.options = std::move(options);
  return ablation;
}

}  // namespace

void check(const AblationOptions& options) {
  auto in_range = [](const char* name, int value, int least, int most) {
    if (value < least || value > most) {
      throw base::user_error("{} {}: must be between {} and {}", name, value, least, most);
    }
  };
  in_range("--steps", options.steps.value_or(1), 1, kMostRunSteps);
  in_range("--blocks", options.blocks.value_or(1), 1, kMostBlocks);
  if (!options.axes.empty() && (options.leave_one_out || options.limit_row)) {
    throw base::UserError("--axis replaces the ladder: leave out --leave-one-out and --limit-row");
  }
  if (options.model.empty() && options.resume.empty()) {
    throw base::UserError("--model is missing: try --model deepspeed/llama3-8b");
  }
}

int run_ablation(AblationOptions options) {
  check(options);
  bool json = options.json;
  bool dry_run = options.dry_run;
  Ablation ablation;
  if (options.resume.empty()) {
    ablation = begin(std::move(options));
  } else {
    ablation = load(options.resume);
    ablation.stopped.clear();
    if (options.budget_given) ablation.options.budget_s = options.budget_s;
    if (options.until_given) ablation.options.until = options.until;
  }
  base::become_subreaper();
  Session session(std::move(ablation), json);
  if (dry_run) {
    session.describe();
    return base::kDone;
  }
  return session.run();
}

}  // namespace ljtrain::cnp
