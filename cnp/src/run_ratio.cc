#include "cnp/run_ratio.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "cnp/steady_state.h"

namespace ljtrain::cnp {
namespace {

constexpr std::size_t kFewestPairs = 3;
constexpr std::size_t kFewestSessions = 4;  // from which on their spread alone is trusted
constexpr std::size_t kFewestSteps = 8;     // below, the correlation of neighbours is a guess
constexpr double kLargestCorrelation = 0.97;
constexpr double kSessionOdds = kSessionShare / (1 - kSessionShare);

double mean_log(std::span<const double> seconds) {
  std::vector<double> logs;
  logs.reserve(seconds.size());
  for (double value : seconds) {
    if (!(value > 0) || !std::isfinite(value)) {
      throw base::user_error("a comparison needs step times above 0, and one is {} s", value);
    }
    logs.push_back(std::log(value));
  }
  return mean(logs);
}

double variance(std::span<const double> values) {
  double deviation = standard_deviation(values).value_or(0);
  return deviation * deviation;
}

// Fills in interval and p-value from the difference of mean logarithms.
void conclude(RunRatio& found, double difference, double standard_error, double degrees) {
  found.ratio = std::exp(difference);
  found.standard_error = standard_error;
  found.degrees = degrees;
  if (standard_error > 0) {
    found.p_value = 2 * student_t_cdf(-std::abs(difference) / standard_error, degrees);
  } else {
    found.p_value = difference == 0 ? 1 : 0;
  }
  double half =
      standard_error > 0 ? standard_error * student_t_quantile((1 + found.level) / 2, degrees) : 0;
  found.interval = Interval{std::exp(difference - half), std::exp(difference + half)};
}

// Logarithm of the step time of each pair's a over its b; empty when the sides do not alternate.
std::vector<double> alternating_pairs(std::span<const Measurement> a,
                                      std::span<const Measurement> b) {
  struct Event {
    double start_s;
    bool is_a;
    double log;
  };
  std::vector<Event> events;
  for (const Measurement& one : a)
    events.push_back({one.start_s, true, mean_log(one.run_medians_s)});
  for (const Measurement& one : b) {
    events.push_back({one.start_s, false, mean_log(one.run_medians_s)});
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& x, const Event& y) { return x.start_s < y.start_s; });
  std::vector<double> pairs;
  for (std::size_t i = 0; i + 1 < events.size();) {
    if (events[i].is_a == events[i + 1].is_a) {
      ++i;
      continue;
    }
    double difference = events[i].log - events[i + 1].log;
    pairs.push_back(events[i].is_a ? difference : -difference);
    i += 2;
  }
  bool most = 3 * 2 * pairs.size() >= 2 * events.size();
  return pairs.size() >= kFewestPairs && most ? pairs : std::vector<double>{};
}

// One side, its runs gathered by session.
struct Sessions {
  std::vector<double> means;      // of log run medians
  std::vector<std::size_t> runs;  // in each
  double within_squares = 0;      // around the session's mean
  double within_degrees = 0;
};

Sessions sessions_of(std::span<const Measurement> side) {
  std::vector<const Measurement*> ordered;
  for (const Measurement& one : side) ordered.push_back(&one);
  std::stable_sort(ordered.begin(), ordered.end(), [](const Measurement* x, const Measurement* y) {
    return x->start_s < y->start_s;
  });
  std::vector<std::vector<double>> sessions;
  double last = 0;
  for (const Measurement* one : ordered) {
    if (sessions.empty() || one->start_s - last > kSessionGapSeconds) sessions.emplace_back();
    last = one->start_s;
    for (double seconds : one->run_medians_s) {
      sessions.back().push_back(mean_log(std::span(&seconds, 1)));
    }
  }
  Sessions found;
  for (const std::vector<double>& logs : sessions) {
    auto degrees = static_cast<double>(logs.size()) - 1;
    found.means.push_back(mean(logs));
    found.runs.push_back(logs.size());
    found.within_squares += variance(logs) * degrees;
    found.within_degrees += degrees;
  }
  return found;
}

struct Spread {
  double variance = 0;  // of the side's mean
  double degrees = 0;   // 0: unknown
};

// Of the mean over `sessions`, by the spread found in `source` (the same side, or the other one).
Spread spread(const Sessions& sessions, const Sessions& source) {
  auto count = static_cast<double>(sessions.means.size());
  auto of_source = static_cast<double>(source.means.size());
  Spread between;
  if (source.means.size() >= 2) between = {variance(source.means) / count, of_source - 1};
  if (source.means.size() >= kFewestSessions) return between;
  Spread within;
  if (source.within_degrees > 0) {
    double squares = source.within_squares / source.within_degrees;
    double one_run = 0;  // mean of 1/n over sessions
    for (std::size_t runs : sessions.runs) one_run += 1 / (count * static_cast<double>(runs));
    within = {squares * (kSessionOdds + one_run) / count, source.within_degrees};
  }
  return within.variance >= between.variance && within.degrees > 0 ? within : between;
}

// Satterthwaite's degrees of freedom of the sum of two variances.
double degrees_of_sum(const Spread& a, const Spread& b) {
  double sum = a.variance + b.variance;
  double share = sum > 0 ? a.variance / sum : 0.5;
  return 1 / (share * share / a.degrees + (1 - share) * (1 - share) / b.degrees);
}

std::string counted(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

void by_sessions(RunRatio& found, const Sessions& a, const Sessions& b) {
  found.method = RatioMethod::kSessions;
  found.sessions_a = a.means.size();
  found.sessions_b = b.means.size();
  double difference = mean(a.means) - mean(b.means);
  found.ratio = std::exp(difference);
  Spread of_a = spread(a, a);
  Spread of_b = spread(b, b);
  std::string borrowed;
  if (of_a.degrees == 0 && of_b.degrees > 0) {
    of_a = spread(a, b);
    of_b.degrees = of_a.degrees;
    borrowed = ", a single run taking the other side's spread";
  } else if (of_b.degrees == 0 && of_a.degrees > 0) {
    of_b = spread(b, a);
    borrowed = ", a single run taking the other side's spread";
  }
  double sum = of_a.variance + of_b.variance;
  double degrees = borrowed.empty() ? degrees_of_sum(of_a, of_b) : of_a.degrees;
  conclude(found, difference, std::sqrt(sum), degrees);
  found.how =
      fmt::format("Welch's t over sessions: {} in {} against {} in {}{}",
                  counted(found.runs_a, "run"), counted(found.sessions_a, "session"),
                  counted(found.runs_b, "run"), counted(found.sessions_b, "session"), borrowed);
}

std::size_t count_runs(std::span<const Measurement> side) {
  std::size_t runs = 0;
  for (const Measurement& one : side) {
    if (one.run_medians_s.empty()) {
      throw base::UserError("a measurement without a run cannot be compared");
    }
    runs += one.run_medians_s.size();
  }
  if (runs == 0) throw base::UserError("a comparison needs at least one run a side");
  return runs;
}

// Of the mean of steps that follow AR(1).
Spread spread_of_correlated(const std::vector<double>& logs) {
  auto n = static_cast<double>(logs.size());
  double measured = lag1_autocorrelation(logs);
  // The bias of the estimate for short series: Kendall 1954.
  double phi = std::clamp(measured + (1 + 4 * measured) / n, 0.0, kLargestCorrelation);
  double inflation = 1;
  double power = 1;
  for (double lag = 1; lag < n; ++lag) {
    power *= phi;
    inflation += 2 * (1 - lag / n) * power;
  }
  // What correlation takes from the sample variance.
  double kept = std::max(1 - (inflation - 1) / (n - 1), 0.1);
  return {variance(logs) / kept * inflation / n, std::max(1.0, n / inflation - 1)};
}

std::vector<double> logs_of(std::span<const double> seconds) {
  std::vector<double> logs;
  for (double value : seconds) logs.push_back(mean_log(std::span(&value, 1)));
  return logs;
}

}  // namespace

RunRatio steps_ratio(std::span<const double> a, std::span<const double> b) {
  RunRatio found;
  found.method = RatioMethod::kSteps;
  found.runs_a = found.runs_b = 1;
  found.ratio = median(a) / median(b);
  std::vector<double> log_a = logs_of(a);
  std::vector<double> log_b = logs_of(b);
  if (std::min(a.size(), b.size()) < kFewestSteps) {
    found.how =
        fmt::format("one run a side, of {} and {} steps: too few for a test (it needs {} of each)",
                    a.size(), b.size(), kFewestSteps);
    return found;
  }
  Spread of_a = spread_of_correlated(log_a);
  Spread of_b = spread_of_correlated(log_b);
  double ratio = found.ratio;
  conclude(found, mean(log_a) - mean(log_b), std::sqrt(of_a.variance + of_b.variance),
           degrees_of_sum(of_a, of_b));
  found.ratio = ratio;
  found.interval.reset();
  found.how =
      "one run a side: Welch's t over its steps with their autocorrelation allowed for; it speaks "
      "of these two runs, not of the next ones";
  return found;
}

RunRatio ratio_of_runs(std::span<const Measurement> a, std::span<const Measurement> b,
                       double level) {
  if (!(level > 0 && level < 1)) {
    throw base::user_error("the level of an interval is between 0 and 1, not {}", level);
  }
  RunRatio found;
  found.level = level;
  found.runs_a = count_runs(a);
  found.runs_b = count_runs(b);
  if (std::vector<double> pairs = alternating_pairs(a, b); !pairs.empty()) {
    found.method = RatioMethod::kPairs;
    found.pairs = pairs.size();
    auto n = static_cast<double>(pairs.size());
    conclude(found, mean(pairs), std::sqrt(variance(pairs) / n), n - 1);
    found.how = fmt::format("t over {} pairs that ran side by side", pairs.size());
    return found;
  }
  if (found.runs_a == 1 && found.runs_b == 1) {
    if (a[0].steps_s.empty() || b[0].steps_s.empty()) {
      found.method = RatioMethod::kSteps;
      found.ratio = std::exp(mean_log(a[0].run_medians_s) - mean_log(b[0].run_medians_s));
      found.how = "one run a side, and no steps to test";
      return found;
    }
    RunRatio steps = steps_ratio(a[0].steps_s[0], b[0].steps_s[0]);
    steps.level = level;
    return steps;
  }
  by_sessions(found, sessions_of(a), sessions_of(b));
  return found;
}

RunRatio independent_ratio(std::span<const double> a, std::span<const double> b, double level) {
  RunRatio found;
  found.level = level;
  found.runs_a = found.sessions_a = a.size();
  found.runs_b = found.sessions_b = b.size();
  std::vector<double> log_a = logs_of(a);
  std::vector<double> log_b = logs_of(b);
  double difference = mean(log_a) - mean(log_b);
  found.ratio = std::exp(difference);
  found.how = "Welch's t of independent values";
  if (std::min(a.size(), b.size()) < 2) return found;
  Spread of_a{variance(log_a) / static_cast<double>(a.size()), static_cast<double>(a.size()) - 1};
  Spread of_b{variance(log_b) / static_cast<double>(b.size()), static_cast<double>(b.size()) - 1};
  conclude(found, difference, std::sqrt(of_a.variance + of_b.variance), degrees_of_sum(of_a, of_b));
  return found;
}

RatioEstimate blocked_ratio_interval95(std::span<const std::optional<double>> a,
                                       std::span<const std::optional<double>> b) {
  if (a.size() != b.size()) {
    throw base::user_error("blocks need lists of one length, not {} and {}", a.size(), b.size());
  }
  std::vector<double> both_a;
  std::vector<double> both_b;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i] || !b[i]) continue;
    both_a.push_back(*a[i]);
    both_b.push_back(*b[i]);
  }
  if (both_a.empty()) throw base::UserError("no block holds both configurations");
  return paired_ratio_interval95(both_a, both_b);
}

}  // namespace ljtrain::cnp
