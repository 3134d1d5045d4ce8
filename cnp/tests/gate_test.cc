#include "cnp/gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/errors.h"
#include "base/json.h"
#include "sample_records.h"
#include "synthetic_steps.h"

namespace ljtrain::cnp {
namespace {

using base::UserError;
using Values = std::vector<double>;

// A record of `medians.size()` runs of the given median step times.
Record with_medians(const std::string& id, const std::string& created, const Values& medians) {
  Record record = full_record();
  record.record_id = id;
  record.created = created;
  auto run = record.runs.front();
  record.runs.clear();
  for (double seconds : medians) {
    run.median_s = seconds;
    record.runs.push_back(run);
  }
  return record;
}

Record baseline(const Values& medians = {1, 1.01, 0.99, 1.005, 0.995}) {
  return with_medians("base", "2026-11-30T10:00:00Z", medians);
}

Record candidate(double factor = 1, std::size_t runs = 5) {
  Values medians = {1.002, 1.008, 0.992, 1.004, 0.996};
  medians.resize(runs);
  for (double& seconds : medians) seconds *= factor;
  return with_medians("candidate", "2026-12-01T10:00:00Z", medians);
}

GateVerdict judge(const Record& after, const GateLimits& limits = {}) {
  return gate("base", {baseline()}, "candidate", {after}, limits);
}

const Check& check(const GateVerdict& verdict, const std::string& id) {
  for (const Check& one : verdict.checks) {
    if (one.id == id) return one;
  }
  throw std::out_of_range(id);
}

TEST(Gate, PassesWhatIsTheSame) {
  GateVerdict verdict = judge(candidate());
  EXPECT_EQ(verdict.exit_code(), 0);
  ASSERT_EQ(verdict.checks.size(), 5U);
  for (const Check& one : verdict.checks) EXPECT_EQ(one.result, CheckResult::kPass) << one.id;
  EXPECT_GT(*check(verdict, "speed").detectable, 0.03);
}

TEST(Gate, FailsWhatIsSlower) {
  GateVerdict verdict = judge(candidate(1.15));
  EXPECT_EQ(verdict.exit_code(), 1);
  const Check& speed = check(verdict, "speed");
  EXPECT_EQ(speed.result, CheckResult::kFail);
  EXPECT_NEAR(*speed.value, 0.15, 0.002);
  EXPECT_GT(speed.interval->low, 0.03);
  // A wider limit lets it through, and so does an interval that reaches the limit.
  EXPECT_EQ(judge(candidate(1.15), {.slowdown = 0.2, .memory = 0.02, .loss = true}).exit_code(), 0);
  EXPECT_EQ(judge(candidate(1.04)).exit_code(), 0);
  EXPECT_EQ(judge(candidate(0.5)).exit_code(), 0);
}

TEST(Gate, FailsWhatNeedsMoreMemory) {
  Record more = candidate();
  for (auto& run : more.runs) {
    for (Step& step : run.steps) step.peak_bytes_per_rank = {1'030'000};
  }
  GateVerdict verdict = judge(more);
  EXPECT_EQ(check(verdict, "memory").result, CheckResult::kFail);
  EXPECT_EQ(verdict.exit_code(), 1);
  EXPECT_EQ(judge(more, {.slowdown = 0.03, .memory = 0.05, .loss = true}).exit_code(), 0);
}

TEST(Gate, FailsAnotherLoss) {
  Record other = candidate();
  other.runs[1].steps[0].loss += 0.1;
  EXPECT_EQ(check(judge(other), "loss").result, CheckResult::kFail);
  EXPECT_EQ(judge(other).exit_code(), 1);
  EXPECT_EQ(judge(other, {.slowdown = 0.03, .memory = 0.02, .loss = false}).exit_code(), 0);
}

TEST(Gate, FailsWhatFailed) {
  Record failed = candidate();
  failed.status = Status::kFailed;
  failed.failure = Failure{.sentence = "rank 1 was killed", .rank = 1, .last_lines = {}};
  GateVerdict verdict = judge(failed);
  EXPECT_EQ(verdict.exit_code(), 1);
  EXPECT_NE(check(verdict, "runs").sentence.find("rank 1 was killed"), std::string::npos);
  // What completed beside it is judged, too.
  verdict = gate("base", {baseline()}, "c", {candidate(), failed}, {});
  EXPECT_EQ(verdict.checks.size(), 5U);
  EXPECT_EQ(verdict.exit_code(), 1);
  EXPECT_THROW(gate("base", {failed}, "c", {candidate()}, {}), UserError);
  EXPECT_THROW(gate("base", {}, "c", {candidate()}, {}), UserError);
  EXPECT_THROW(gate("base", {baseline()}, "c", {}, {}), UserError);
}

TEST(Gate, SaysWhatItCannotTell) {
  Record unlike = candidate();
  unlike.precision = "fp32";
  EXPECT_EQ(judge(unlike).exit_code(), 2);
  EXPECT_EQ(judge(unlike).checks.size(), 2U);  // nothing is judged of another task

  GateVerdict one_run = gate("b", {baseline({1})}, "c", {candidate(1.5, 1)}, {});
  EXPECT_EQ(check(one_run, "speed").result, CheckResult::kCannotTell);
  EXPECT_EQ(one_run.exit_code(), 2);
  // One run against several serves.
  EXPECT_EQ(judge(candidate(1.5, 1)).exit_code(), 1);
  EXPECT_EQ(judge(candidate(1.0, 1)).exit_code(), 0);

  Record no_memory = candidate();
  no_memory.peak_memory_bytes.max.reset();
  for (auto& run : no_memory.runs) {
    for (Step& step : run.steps) step.peak_bytes_per_rank.clear();
  }
  EXPECT_EQ(check(judge(no_memory), "memory").result, CheckResult::kCannotTell);
}

TEST(Gate, PercentagesAreReadStrictly) {
  EXPECT_DOUBLE_EQ(parse_percent("--x", "3%"), 0.03);
  EXPECT_DOUBLE_EQ(parse_percent("--x", "+2 %"), 0.02);
  EXPECT_DOUBLE_EQ(parse_percent("--x", " 0.5% "), 0.005);
  EXPECT_DOUBLE_EQ(parse_percent("--x", "0%"), 0);
  for (const char* bad :
       {"", "%", "3", "0.03", "-3%", "3%%", "++3%", "three%", "nan%", "inf%", "1e9%", "3%\n"}) {
    EXPECT_THROW(parse_percent("--x", bad), UserError) << bad;
  }
}

TEST(Gate, JunitIsEscaped) {
  GateVerdict verdict;
  Check bad;
  bad.id = "runs";
  bad.result = CheckResult::kFail;
  bad.sentence = "<script> & \"quotes\" \x1b[31m \xff \xEF\xBF\xBF";
  verdict.checks = {bad};
  std::string xml = junit_xml(verdict, "a<b");
  EXPECT_NE(xml.find("name=\"a&lt;b\" tests=\"1\" failures=\"1\" errors=\"0\""), std::string::npos);
  EXPECT_NE(xml.find("&lt;script&gt; &amp; &quot;quotes&quot;"), std::string::npos);
  for (char forbidden : {'\x1b', '\xff'}) EXPECT_EQ(xml.find(forbidden), std::string::npos);
  EXPECT_EQ(xml.find("\xEF\xBF\xBF"), std::string::npos);
}

// Median step times of 200 runs of one benchmark, one after another, on a shared machine that
// drifts: benchmarks/README.md, "A against A".
const Values& real_runs() {
  static const Values runs = [] {
    std::ifstream file(std::string(LJTRAIN_SOURCE_DIR) +
                       "/benchmarks/ljperf/results/2026-11-30-a-a-apart.json");
    Values found;
    const base::Json result = base::Json::parse(file);
    for (const base::Json& row : result["rows"]) {
      for (const base::Json& side : row["medians_s"]) {
        for (const base::Json& median : side) found.push_back(median);
      }
    }
    return found;
  }();
  return runs;
}

// The tables of docs/cnp.md take LJTRAIN_FULL_STATISTICS=1: every pair of windows, 20,000 trials.
bool full() { return std::getenv("LJTRAIN_FULL_STATISTICS") != nullptr; }

constexpr double kLimit = 0.03;
constexpr double kFar = 86'400;  // seconds: another session

Measurement one_session(const double* begin, std::size_t count, double start_s, double factor) {
  Measurement one;
  one.start_s = start_s;
  for (std::size_t i = 0; i < count; ++i) one.run_medians_s.push_back(factor * begin[i]);
  return one;
}

bool fails(const RunRatio& speed) { return 1 / speed.interval->high - 1 > kLimit; }

struct Rates {
  double fails = 0;   // of the gate
  double covers = 0;  // of the 95 % interval
  std::size_t trials = 0;
};

// Of all pairs of `count` neighbouring runs that do not overlap, one the baseline, one the candidate.
Rates apart(const Values& runs, std::size_t count, double factor, std::size_t stride) {
  Rates rates;
  for (std::size_t i = 0; i + count <= runs.size(); i += stride) {
    for (std::size_t k = 0; k + count <= runs.size(); k += stride) {
      if ((i > k ? i - k : k - i) < count) continue;
      std::vector<Measurement> a = {one_session(&runs[i], count, 0, 1)};
      std::vector<Measurement> b = {one_session(&runs[k], count, kFar, factor)};
      rates.fails += fails(ratio_of_runs(a, b, kGateLevel)) ? 1 : 0;
      Interval interval = *ratio_of_runs(a, b).interval;
      rates.covers += interval.low <= 1 / factor && 1 / factor <= interval.high ? 1 : 0;
      ++rates.trials;
    }
  }
  rates.fails /= static_cast<double>(rates.trials);
  rates.covers /= static_cast<double>(rates.trials);
  return rates;
}

// The same runs taken in turns: A B, B A, A B, ...
Rates in_turns(const Values& runs, std::size_t count, double factor) {
  Rates rates;
  for (std::size_t i = 0; i + 2 * count <= runs.size(); ++i) {
    for (int first : {0, 1}) {
      std::vector<Measurement> sides[2];
      for (std::size_t run = 0; run < 2 * count; ++run) {
        std::size_t side = (run % 4 == 0 || run % 4 == 3) ? first : 1 - first;
        sides[side].push_back(one_session(&runs[i + run], 1, 60.0 * static_cast<double>(run),
                                          side == 1 ? factor : 1));
      }
      rates.fails += fails(ratio_of_runs(sides[0], sides[1], kGateLevel)) ? 1 : 0;
      Interval interval = *ratio_of_runs(sides[0], sides[1]).interval;
      rates.covers += interval.low <= 1 / factor && 1 / factor <= interval.high ? 1 : 0;
      ++rates.trials;
    }
  }
  rates.fails /= static_cast<double>(rates.trials);
  rates.covers /= static_cast<double>(rates.trials);
  return rates;
}

void report(const char* how, std::size_t runs, double slower, const Rates& rates) {
  std::printf(
      "gate, %-26s %2zu runs a side, %4.1f %% slower: fails %6.2f %%, covers %5.1f %% of %zu\n",
      how, runs, 100 * slower, 100 * rates.fails, 100 * rates.covers, rates.trials);
}

TEST(GateFalseAlarms, OnRealRunsApart) {
  ASSERT_EQ(real_runs().size(), 200U);
  for (std::size_t count : {2U, 3U, 5U, 10U, 20U}) {
    Rates rates = apart(real_runs(), count, 1, full() ? 1 : 3);
    report("real A/A, apart", count, 0, rates);
    EXPECT_LT(rates.fails, 0.01) << count;
    EXPECT_GT(rates.covers, 0.93) << count;
  }
}

TEST(GateFalseAlarms, OnRealRunsInTurns) {
  for (std::size_t count : {3U, 5U, 10U, 20U}) {
    Rates rates = in_turns(real_runs(), count, 1);
    report("real A/A, in turns", count, 0, rates);
    EXPECT_LT(rates.fails, 0.01) << count;
    EXPECT_GT(rates.covers, 0.93) << count;
  }
}

TEST(GatePower, OnRealRuns) {
  // What docs/cnp.md says it finds on that machine.
  EXPECT_GT(in_turns(real_runs(), 10, 1.15).fails, 0.9);
  EXPECT_GT(in_turns(real_runs(), 20, 1.10).fails, 0.9);
  if (!full()) return;
  for (double factor : {1.05, 1.08, 1.10, 1.12, 1.15, 1.20, 1.25, 1.30, 1.40, 1.50}) {
    for (std::size_t count : {3U, 5U, 10U, 20U}) {
      report("real, apart", count, factor - 1, apart(real_runs(), count, factor, 2));
      report("real, in turns", count, factor - 1, in_turns(real_runs(), count, factor));
    }
  }
}

// Runs of a quiet machine: 0.9 % between runs (docs/statistics.md), either independent, or with half
// of that variance shared by the runs of a session.
class QuietMachine {
 public:
  explicit QuietMachine(double shared) : shared_(shared), synthetic_(20261130) {}

  Values session(std::size_t count) {
    double level = kNoise * std::sqrt(shared_) * synthetic_.normal();
    Values runs;
    for (std::size_t i = 0; i < count; ++i) {
      runs.push_back(std::exp(level + kNoise * std::sqrt(1 - shared_) * synthetic_.normal()));
    }
    return runs;
  }

 private:
  static constexpr double kNoise = 0.009;
  double shared_;
  SyntheticSteps synthetic_;
};

Rates simulated(double shared, std::size_t count, double factor, bool turns) {
  const std::size_t trials = full() ? 20'000 : 1000;
  QuietMachine machine(shared);
  Rates rates;
  rates.trials = trials;
  for (std::size_t trial = 0; trial < trials; ++trial) {
    std::vector<Measurement> a;
    std::vector<Measurement> b;
    if (turns) {
      Values runs = machine.session(2 * count);
      for (std::size_t i = 0; i < runs.size(); ++i) {
        bool is_a = i % 4 == 0 || i % 4 == 3;
        (is_a ? a : b)
            .push_back(one_session(&runs[i], 1, 60.0 * static_cast<double>(i), is_a ? 1 : factor));
      }
    } else {
      Values of_a = machine.session(count);
      Values of_b = machine.session(count);
      a = {one_session(of_a.data(), count, 0, 1)};
      b = {one_session(of_b.data(), count, kFar, factor)};
    }
    rates.fails += fails(ratio_of_runs(a, b, kGateLevel)) ? 1.0 / static_cast<double>(trials) : 0;
    Interval interval = *ratio_of_runs(a, b).interval;
    rates.covers += interval.low <= 1 / factor && 1 / factor <= interval.high
                        ? 1.0 / static_cast<double>(trials)
                        : 0;
  }
  return rates;
}

TEST(GatePower, OnAQuietMachine) {
  for (bool turns : {false, true}) {
    for (std::size_t count : {3U, 5U, 10U}) {
      EXPECT_LT(simulated(0.5, count, 1, turns).fails, 0.003);
      // Exactly at the limit: 1 % by construction.
      EXPECT_LT(simulated(0.5, count, 1 + kLimit, turns).fails, 0.025);
    }
  }
  EXPECT_GT(simulated(0.5, 5, 1.06, true).fails, 0.9);
  EXPECT_GT(simulated(0.5, 10, 1.05, true).fails, 0.9);
  EXPECT_GT(simulated(0.5, 5, 1.10, false).fails, 0.9);
  if (!full()) return;
  for (bool turns : {false, true}) {
    for (std::size_t count : {3U, 5U, 10U, 20U}) {
      for (double slower : {0.0, 0.03, 0.04, 0.045, 0.05, 0.055, 0.06, 0.08, 0.09, 0.10, 0.12}) {
        report(turns ? "quiet, in turns" : "quiet, apart", count, slower,
               simulated(0.5, count, 1 + slower, turns));
      }
    }
  }
}

}  // namespace
}  // namespace ljtrain::cnp
