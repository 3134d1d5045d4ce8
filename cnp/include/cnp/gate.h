// Whether a candidate may pass: slower, larger or different from the baseline by more than allowed?
// A limit counts as broken only when the interval is wholly beyond it, so that noise alone seldom
// breaks one (docs/cnp.md, "Gate", has the false-alarm rates and what the gate detects).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cnp/comparison.h"

namespace ljtrain::cnp {

// Two-sided level of the intervals: each one-sided bound fails an equal candidate that is exactly
// at the limit in 1 % of trials, one without any change far less often.
inline constexpr double kGateLevel = 0.98;

struct GateLimits {
  double slowdown = 0.03;  // fraction of the baseline's time a token
  double memory = 0.02;    // fraction of the baseline's peak
  bool loss = true;        // the loss is to stay the same within loss_tolerance()
};

enum class CheckResult { kPass, kFail, kCannotTell };

struct Check {
  std::string id;  // runs, configuration, speed, memory, loss
  CheckResult result = CheckResult::kPass;
  std::string sentence;              // one line: what was found, what is allowed
  std::optional<double> value;       // measured change, a fraction; null where it has none
  std::optional<Interval> interval;  // of kGateLevel
  std::optional<double> limit;       // a fraction
  std::optional<double> detectable;  // change that this check fails 9 times in 10; null: unknown
};

struct GateVerdict {
  std::vector<Check> checks;
  double seconds = 0;                    // the candidate's training, for the report
  std::optional<Comparison> comparison;  // null when the two sides could not be compared
  // 0: all pass. 1: one fails. 2: none fails, but one cannot be told.
  int exit_code() const;
};

// UserError when a list is empty or the baseline did not complete.
GateVerdict gate(std::string baseline_name, std::vector<Record> baseline,
                 std::string candidate_name, std::vector<Record> candidate,
                 const GateLimits& limits);

// The change a check fails 9 times in 10, given how exact this comparison was: the limit plus what
// the interval and the scatter of the estimate need. nullopt without a standard error.
std::optional<double> detectable_slowdown(const RunRatio& speed, double limit);

// "3%", "+2 %", "0.5%" -> 0.03, 0.02, 0.005. UserError that names `option` for anything else.
double parse_percent(std::string_view option, std::string_view text);

// The checks as JUnit XML, one test case each; what cannot be told is an error, a failed check a
// failure. What XML cannot hold (control characters, no UTF-8) is replaced.
std::string junit_xml(const GateVerdict& verdict, std::string_view suite);

}  // namespace ljtrain::cnp
