// How much faster one configuration is than another, from runs: numbers only, no records.
//
// Runs of one configuration are not independent: what ran within minutes shares the machine's
// state. docs/statistics.md ("Comparing runs") says what was measured, and how often the intervals
// here hold the truth. Every function throws base::UserError for a step time that is not a finite
// number above 0, and names it; for an empty side, too.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cnp/statistics.h"

namespace ljtrain::cnp {

// One invocation of the benchmark: runs one after another.
struct Measurement {
  double start_s = 0;                 // seconds since any epoch, the same for all
  std::vector<double> run_medians_s;  // median step of each run, in any unit of time
  // Steps after warm-up of each run; used only when neither side has more than one run.
  std::vector<std::vector<double>> steps_s;
};

enum class RatioMethod {
  kPairs,     // measurements of both sides alternate: t interval of the logarithms of pairs
  kSessions,  // one side after the other: Welch's t over sessions
  kSteps,     // one run a side: only these two runs, see steps_ratio()
};

struct RunRatio {
  RatioMethod method = RatioMethod::kSessions;
  double ratio = 1;                  // step time of a / step time of b: above 1, b is faster
  std::optional<Interval> interval;  // two-sided, of `level`; null with one run a side
  double level = 0.95;
  std::optional<double> p_value;  // two-sided, of "the ratio is 1"
  double degrees = 0;             // of freedom
  double standard_error = 0;      // of log(ratio); 0 when unknown
  std::size_t pairs = 0;          // kPairs: used; what found no partner is left out
  std::size_t runs_a = 0;
  std::size_t runs_b = 0;
  std::size_t sessions_a = 0;  // kSessions
  std::size_t sessions_b = 0;
  std::string how;  // a sentence: what was compared with what, and by which test
};

// Measurements that begin no more than this after the one before belong to one session.
inline constexpr double kSessionGapSeconds = 600;
// Share of the variance between runs that runs of one session have in common, where it cannot be
// measured (fewer than 4 sessions a side). On the machine of benchmarks/ljperf/results, with it
// 95 % intervals hold the truth in 94 to 97 % of A/A comparisons of 2 to 10 runs a side; without
// it in 46 to 87 %.
inline constexpr double kSessionShare = 0.6;

// Step time of a / b. Chooses by what there is:
//   - in order of time the sides alternate (A B, B A, ...; at least 3 pairs, at most a third of the
//     measurements without a partner): pairs;
//   - else sessions: the variance of a session's mean is that between the sessions of a side with
//     at least 4 of them, else the larger of that and s^2 (r + 1/n), s the standard deviation
//     between runs of one session, n their number, r = kSessionShare / (1 - kSessionShare). A side
//     with a single run takes the variance of the other;
//   - one run a side: steps_ratio(), which gives a p_value and no interval.
RunRatio ratio_of_runs(std::span<const Measurement> a, std::span<const Measurement> b,
                       double level = 0.95);

// Whether the steps of two runs differ: Welch's t on log step times, with the sample sizes that
// equally many independent steps would have (correlation of neighbouring steps estimated as AR(1),
// bias corrected; Zwiers and von Storch 1995). A drift within a run counts as correlation and so
// widens. Speaks of these two runs only, so `interval` is null.
RunRatio steps_ratio(std::span<const double> a, std::span<const double> b);

// a / b from independent values above 0: Welch's t of the logarithms, at any level; `interval` is
// null when a side has one value. kSessions with every value a session of its own.
RunRatio independent_ratio(std::span<const double> a, std::span<const double> b,
                           double level = 0.95);

// paired_ratio_interval95 over randomised blocks, where a member may be missing (nullopt: it
// failed): such a block is left out. UserError when no block has both.
RatioEstimate blocked_ratio_interval95(std::span<const std::optional<double>> a,
                                       std::span<const std::optional<double>> b);

}  // namespace ljtrain::cnp
