#include "cnp/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/errors.h"
#include "base/text.h"
#include "base/units.h"

namespace ljtrain::cnp {
namespace {

constexpr double kBlind = 0.25;    // a gate that lets such a slowdown through says so
constexpr double kDetected = 0.9;  // of candidates that are slower by Check::detectable

std::string percent(double fraction) {
  // "+0.0" rather than "-0.0".
  double value = 100 * fraction;
  return fmt::format("{:+.1f} %", std::abs(value) < 0.05 ? 0.0 : value);
}

std::string allowed(double limit) { return fmt::format("{:+.4g} %", 100 * limit); }

CheckResult against(const Interval& interval, double limit) {
  return interval.low > limit ? CheckResult::kFail : CheckResult::kPass;
}

Check named(const char* id) {
  Check check;
  check.id = id;
  return check;
}

Check check_runs(const std::vector<Record>& candidate) {
  Check check = named("runs");
  for (const Record& record : candidate) {
    if (record.status == Status::kCompleted) continue;
    check.result = CheckResult::kFail;
    check.sentence = fmt::format(
        "record {} {}: {}", base::printable(record.record_id),
        record.status == Status::kFailed ? "failed" : "was interrupted",
        record.failure ? base::printable(record.failure->sentence) : "it does not say why");
    return check;
  }
  check.sentence = candidate.size() == 1 ? std::string("the record completed")
                                         : fmt::format("{} records completed", candidate.size());
  return check;
}

Check check_configuration(const Comparison& comparison) {
  Check check = named("configuration");
  std::string unlike = unlike_sentence(comparison.differences);
  if (!unlike.empty()) {
    check.result = CheckResult::kCannotTell;
    check.sentence = fmt::format("not the same task: {}", unlike);
    return check;
  }
  std::size_t count = comparison.differences.size();
  check.sentence = count == 0 ? std::string("the same in every key")
                              : fmt::format("the same task; {} other {} (`cnp compare` lists {})",
                                            count, count == 1 ? "key differs" : "keys differ",
                                            count == 1 ? "it" : "them");
  return check;
}

Check check_speed(const RunRatio& speed, double limit) {
  Check check = named("speed");
  check.limit = limit;
  check.value = 1 / speed.ratio - 1;
  if (!speed.interval) {
    check.result = CheckResult::kCannotTell;
    check.sentence = fmt::format(
        "step time {} in one run a side, which has no interval: give one side at least two runs "
        "(`ljperf benchmark --repeat 5`)",
        percent(*check.value));
    return check;
  }
  check.interval = Interval{1 / speed.interval->high - 1, 1 / speed.interval->low - 1};
  check.result = against(*check.interval, limit);
  check.detectable = detectable_slowdown(speed, limit);
  double detected = check.detectable.value_or(limit);
  check.sentence = fmt::format(
      "step time {} [{}, {}], allowed {} ({}; a slowdown of {} is found 9 times in 10{})",
      percent(*check.value), percent(check.interval->low), percent(check.interval->high),
      allowed(limit), speed.how, percent(detected),
      detected > kBlind ? ": TOO FEW RUNS to tell more" : "");
  return check;
}

Check check_memory(const MemoryComparison& memory, double limit) {
  Check check = named("memory");
  check.limit = limit;
  if (!memory.ratio) {
    check.result = CheckResult::kCannotTell;
    check.sentence =
        fmt::format("the {} does not say its peak memory", memory.a ? "candidate" : "baseline");
    return check;
  }
  check.value = *memory.ratio - 1;
  check.interval = Interval{memory.interval->low - 1, memory.interval->high - 1};
  check.result = against(*check.interval, limit);
  std::string spread;
  if (check.interval->low != check.interval->high) {
    spread = fmt::format(" [{}, {}]", percent(check.interval->low), percent(check.interval->high));
  }
  check.sentence = fmt::format("peak memory {}{} ({} -> {}), allowed {}", percent(*check.value),
                               spread, base::format_bytes(static_cast<double>(*memory.a)),
                               base::format_bytes(static_cast<double>(*memory.b)), allowed(limit));
  return check;
}

Check check_loss(const LossParity& loss) {
  Check check = named("loss");
  check.sentence = loss.sentence;
  switch (loss.verdict) {
    case Parity::kSame:
    case Parity::kWithin:
      check.value = loss.largest;
      check.limit = loss.tolerance;
      break;
    case Parity::kOutside:
      check.result = CheckResult::kFail;
      check.value = loss.largest;
      check.limit = loss.tolerance;
      break;
    case Parity::kUnknown:
      check.result = CheckResult::kCannotTell;
      check.sentence =
          fmt::format("cannot be compared: {}; --skip-loss leaves this check out", loss.sentence);
      break;
  }
  return check;
}

double training_seconds(const std::vector<Record>& records) {
  double sum = 0;
  for (const Record& record : records) {
    for (const Run& run : record.runs) {
      for (const Step& step : run.steps) sum += step.seconds;
    }
  }
  return sum;
}

}  // namespace

std::optional<double> detectable_slowdown(const RunRatio& speed, double limit) {
  if (!speed.interval || speed.degrees <= 0) return std::nullopt;
  double quantiles = student_t_quantile((1 + speed.level) / 2, speed.degrees) +
                     student_t_quantile(kDetected, speed.degrees);
  return (1 + limit) * std::exp(quantiles * speed.standard_error) - 1;
}

int GateVerdict::exit_code() const {
  auto any = [this](CheckResult result) {
    return std::any_of(checks.begin(), checks.end(),
                       [=](const Check& check) { return check.result == result; });
  };
  if (any(CheckResult::kFail)) return base::kFailed;
  return any(CheckResult::kCannotTell) ? base::kBadInput : base::kDone;
}

GateVerdict gate(std::string baseline_name, std::vector<Record> baseline,
                 std::string candidate_name, std::vector<Record> candidate,
                 const GateLimits& limits) {
  Side before = make_side(std::move(baseline_name), std::move(baseline));
  GateVerdict found;
  found.seconds = training_seconds(candidate);
  found.checks.push_back(check_runs(candidate));
  if (candidate.empty()) throw base::UserError("the gate needs a candidate");
  std::erase_if(candidate,
                [](const Record& record) { return record.status != Status::kCompleted; });
  if (candidate.empty()) return found;
  Side after = make_side(std::move(candidate_name), std::move(candidate));
  found.comparison = compare(before, after, kGateLevel);
  found.checks.push_back(check_configuration(*found.comparison));
  if (found.checks.back().result != CheckResult::kPass) return found;
  found.checks.push_back(check_speed(found.comparison->speed, limits.slowdown));
  found.checks.push_back(check_memory(found.comparison->memory, limits.memory));
  if (limits.loss) found.checks.push_back(check_loss(found.comparison->loss));
  return found;
}

double parse_percent(std::string_view option, std::string_view text) {
  std::string_view number = text;
  auto trim = [&] {
    while (!number.empty() && number.back() == ' ') number.remove_suffix(1);
    while (!number.empty() && number.front() == ' ') number.remove_prefix(1);
  };
  trim();
  if (number.starts_with('+')) number.remove_prefix(1);
  bool has_sign = number.ends_with('%');
  if (has_sign) number.remove_suffix(1);
  trim();
  double value = 0;
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value,
                                      std::chars_format::fixed);
  bool good = error == std::errc() && end == number.data() + number.size() && has_sign;
  constexpr double kMost = 1000;
  if (!good || !(value >= 0 && value <= kMost)) {
    throw base::user_error("{} {}: write a percentage from 0% to 1000%, such as 3%", option,
                           base::printable(text));
  }
  return value / 100;
}

}  // namespace ljtrain::cnp
