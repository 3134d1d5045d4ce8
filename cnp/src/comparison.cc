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
    if (!step.warmup) seconds.push_back(step.seconds);
  }
  return seconds;
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

Side make_side(std::string name, std::vector<Record> records, bool allow_incomplete) {
  if (records.empty()) {
    throw base::user_error("`{}` names no record: `cnp list` shows what there is",
                           base::printable(name));
  }
  std::sort(records.begin(), records.end(), [](const Record& x, const Record& y) {
    return std::tie(x.created, x.record_id) < std::tie(y.created, y.record_id);
  });
  for (const Record& record : records) {
    if (!allow_incomplete) check_status(record);
    check_times(record);
    if (std::string sentence = unlike_sentence(differences(records.front(), record));
        !sentence.empty()) {
      throw base::user_error(
          "`{}` holds records that are no repeats of one another: {} in {} and {}",
          base::printable(name), sentence, named(records.front()), named(record));
    }
  }
  return {std::move(name), std::move(records)};
}

std::vector<Measurement> measurements(const Side& side) {
  std::vector<Measurement> found;
  for (const Record& record : side.records) {
    Measurement one;
    // Without a time of its own it belongs to the session before it.
    double before = found.empty() ? 0 : found.back().start_s;
    one.start_s = seconds_of(record.created).value_or(before);
    for (const Run& run : record.runs) {
      one.run_medians_s.push_back(run.median_s.value_or(0));
      one.steps_s.push_back(steps_after_warmup(run));
    }
    found.push_back(std::move(one));
  }
  return found;
}

MemoryComparison compare_memory(const Side& a, const Side& b, double level) {
  MemoryComparison found;
  found.level = level;
  auto peaks = [](const Side& side) {
    std::vector<Measurement> result;
    for (const Record& record : side.records) {
      if (!record.peak_memory_bytes.max || *record.peak_memory_bytes.max == 0) continue;
      Measurement one;
      one.start_s = static_cast<double>(result.size());
      one.run_medians_s = {static_cast<double>(*record.peak_memory_bytes.max)};
      result.push_back(std::move(one));
    }
    return result;
  };
  auto middle = [](const std::vector<Measurement>& side) {
    double sum = 0;
    for (const Measurement& one : side) sum += one.run_medians_s[0];
    return static_cast<std::uint64_t>(std::llround(sum / static_cast<double>(side.size())));
  };
  std::vector<Measurement> of_a = peaks(a);
  std::vector<Measurement> of_b = peaks(b);
  if (!of_a.empty()) found.a = middle(of_a);
  if (!of_b.empty()) found.b = middle(of_b);
  if (!found.a || !found.b) return found;
  found.ratio = static_cast<double>(*found.b) / static_cast<double>(*found.a);
  return found;
}

std::string_view verdict(const RunRatio& speed) {
  if (!speed.interval) return "no interval: one run a side";
  if (speed.interval->low > 1) return "faster";
  if (speed.interval->high < 1) return "slower";
  return "no difference shown";
}

Comparison compare(const Side& a, const Side& b, double level) {
  Comparison found;
  found.differences = differences(a.records.front(), b.records.front());
  found.speed = ratio_of_runs(measurements(a), measurements(b), level);
  found.memory = compare_memory(a, b, level);
  found.loss = loss_parity(a.records.front(), b.records.front());
  found.proxy = a.records.front().proxy.is_proxy || b.records.front().proxy.is_proxy;
  return found;
}

}  // namespace ljtrain::cnp
