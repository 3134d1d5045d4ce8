#include "cnp/comparison.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/errors.h"
#include "base/text.h"

namespace ljtrain::cnp {
namespace {

// Seconds since 1970 of "2026-11-30T12:01:02Z"; what is no such time gives nullopt.
std::optional<double> seconds_of(const std::string& iso8601) {
  std::tm parts{};
  const char* end = strptime(iso8601.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr) return std::nullopt;
  return static_cast<double>(timegm(&parts));
}

std::string named(const Record& record) { return base::printable(record.record_id); }

std::vector<double> steps_after_warmup(const Run& run) {
  std::vector<double> seconds;
  for (const Step& step : run.steps) {
    // Imports may know the median only.
    if (!step.warmup && std::isfinite(step.seconds)) seconds.push_back(step.seconds);
  }
  return seconds;
}

// Peak of each run, bytes: of its steps, where they were measured; else the record's.
std::vector<double> peaks(const Side& side) {
  std::vector<double> found;
  for (const Record& record : side.records) {
    std::size_t before = found.size();
    for (const Run& run : record.runs) {
      std::uint64_t most = 0;
      for (const Step& step : run.steps) {
        for (std::uint64_t bytes : step.peak_bytes_per_rank) most = std::max(most, bytes);
      }
      if (most > 0) found.push_back(static_cast<double>(most));
    }
    bool steps_say = found.size() > before;
    if (!steps_say && record.peak_memory_bytes.max.value_or(0) > 0) {
      found.push_back(static_cast<double>(*record.peak_memory_bytes.max));
    }
  }
  return found;
}

void check_times(const Record& record) {
  if (record.runs.empty()) {
    throw base::user_error("record {} holds no run, so there is nothing to compare", named(record));
  }
  for (const Run& run : record.runs) {
    if (!run.median_s) {
      throw base::user_error("record {} has a run without a step after warm-up: give it more steps",
                             named(record));
    }
    if (!(*run.median_s > 0) || !std::isfinite(*run.median_s)) {
      throw base::user_error("record {} has a run whose median step took {} s: no time of a step",
                             named(record), *run.median_s);
    }
  }
}

void check_status(const Record& record) {
  if (record.status == Status::kCompleted) return;
  const char* status = record.status == Status::kFailed ? "failed" : "was interrupted";
  throw base::user_error("record {} {}: {}", named(record), status,
                         record.failure ? base::printable(record.failure->sentence) : "no reason");
}

}  // namespace

Side make_side(std::string name, std::vector<Record> records, bool forced) {
  if (records.empty()) {
    throw base::user_error("`{}` names no record: `cnp list` shows what there is",
                           base::printable(name));
  }
  std::sort(records.begin(), records.end(), [](const Record& x, const Record& y) {
    return std::tie(x.created, x.record_id) < std::tie(y.created, y.record_id);
  });
  for (const Record& record : records) {
    if (!forced) check_status(record);
    check_times(record);
    if (forced) continue;
    std::vector<Difference> found = differences(records.front(), record);
    if (const Difference* first = no_repeat(found)) {
      throw base::user_error(
          "`{}` holds records that are no repeats of one another: `{}` is {} in {} and {} in {}",
          base::printable(name), first->key, first->a, named(records.front()), first->b,
          named(record));
    }
  }
  return {std::move(name), std::move(records)};
}

std::optional<double> tokens_per_step(const Side& side) {
  std::int64_t tokens = side.records.front().global_tokens_per_step;
  for (const Record& record : side.records) {
    if (record.global_tokens_per_step != tokens) return std::nullopt;
  }
  return tokens > 0 ? std::optional(static_cast<double>(tokens)) : std::nullopt;
}

std::vector<Measurement> measurements(const Side& side, bool per_token) {
  std::vector<Measurement> found;
  for (const Record& record : side.records) {
    Measurement one;
    if (per_token && record.global_tokens_per_step <= 0) {
      throw base::user_error("record {} does not say how many tokens a step has", named(record));
    }
    double tokens = per_token ? static_cast<double>(record.global_tokens_per_step) : 1;
    // Without a time of its own it belongs to the session before it.
    double before = found.empty() ? 0 : found.back().start_s;
    one.start_s = seconds_of(record.created).value_or(before);
    for (const Run& run : record.runs) {
      one.run_medians_s.push_back(run.median_s.value_or(0) / tokens);
      one.steps_s.push_back(steps_after_warmup(run));
      for (double& seconds : one.steps_s.back()) seconds /= tokens;
    }
    found.push_back(std::move(one));
  }
  return found;
}

double step_time(const Side& side) {
  double sum = 0;
  double runs = 0;
  for (const Record& record : side.records) {
    for (const Run& run : record.runs) {
      sum += std::log(run.median_s.value_or(0));
      ++runs;
    }
  }
  return std::exp(sum / runs);
}

MemoryComparison compare_memory(const Side& a, const Side& b, double level) {
  MemoryComparison found;
  found.level = level;
  std::vector<double> of_a = peaks(a);
  std::vector<double> of_b = peaks(b);
  if (!of_a.empty()) found.a = static_cast<std::uint64_t>(std::llround(mean(of_a)));
  if (!of_b.empty()) found.b = static_cast<std::uint64_t>(std::llround(mean(of_b)));
  if (!found.a || !found.b) return found;
  RunRatio ratio = independent_ratio(of_b, of_a, level);
  found.ratio = ratio.ratio;
  found.interval = ratio.interval.value_or(Interval{ratio.ratio, ratio.ratio});
  return found;
}

std::string_view verdict(const RunRatio& speed) {
  if (!speed.interval) return "no interval";
  if (speed.interval->low > 1) return "faster";
  if (speed.interval->high < 1) return "slower";
  return "no difference shown";
}

Comparison compare(const Side& a, const Side& b, double level) {
  Comparison found;
  found.differences = differences(a.records.front(), b.records.front());
  bool per_token = tokens_per_step(a) && tokens_per_step(b);
  found.speed = ratio_of_runs(measurements(a, per_token), measurements(b, per_token), level);
  found.memory = compare_memory(a, b, level);
  found.loss = loss_parity(a, b);
  found.proxy = a.records.front().proxy.is_proxy || b.records.front().proxy.is_proxy;
  return found;
}

}  // namespace ljtrain::cnp
