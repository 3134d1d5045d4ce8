#include "logged_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/statistics.h"
#include "cnp/steady_state.h"

namespace ljtrain::cnp {
namespace {

template <typename T>
void state(const std::optional<T>& stated, std::optional<T>& found, const char* option,
           const std::string& file) {
  if (!stated) return;
  if (found && *found != *stated) {
    throw base::user_error("{}: says {} where --{} says {}; leave the option out or mend it",
                           base::printable(file), *found, option, *stated);
  }
  found = stated;
}

// Sets a member, or notes that it is unknown.
template <typename T, typename From>
void put(Record& record, const char* key, T& member, const std::optional<From>& value) {
  if (value) {
    member = static_cast<T>(*value);
  } else {
    member = T();
    record.unknown.insert(key);
  }
}

void put_configuration(const LoggedRun& run, Record& record) {
  const StatedFacts& facts = run.facts;
  for (const std::string& key : unknowable_keys()) record.unknown.insert(key);
  auto know = [&record](const char* key, auto& member, const auto& value) {
    record.unknown.erase(key);
    put(record, key, member, value);
  };
  know("model", record.model, facts.model);
  know("engine", record.engine, facts.engine);
  know("device", record.device, facts.device);
  know("precision", record.precision, facts.precision);
  know("ranks", record.ranks, facts.ranks);
  know("sequence_length", record.sequence_length, facts.sequence_length);
  know("micro_batch", record.micro_batch, facts.micro_batch);
  know("gradient_accumulation", record.gradient_accumulation, facts.gradient_accumulation);
  know("proxy.layers", record.proxy.layers, run.layers);
  know("proxy.hidden_size", record.proxy.hidden_size, run.hidden_size);
  know("global_tokens_per_step", record.global_tokens_per_step, run.global_tokens_per_step);
  know("flops_convention", record.flops_convention,
       run.flops_convention.empty() ? std::nullopt : std::optional(run.flops_convention));
  if (run.parameters) record.parameters = static_cast<std::uint64_t>(*run.parameters);
  if (run.seed) record.seed = static_cast<std::uint64_t>(*run.seed);
  record.peak_memory_bytes.max = run.peak_memory_bytes;
  record.peak_flops.value = run.peak_flops;
  record.peak_flops.source = run.peak_flops ? "as logged" : "";
  if (!run.gpu.empty()) {
    record.environment.hardware.gpus = {{.name = run.gpu, .memory_bytes = run.gpu_memory_bytes}};
  }
}

// Every entry's value after warm-up; empty when one has none.
template <typename Value>
std::vector<double> after_warmup(const LoggedRun& run, std::size_t warmup, Value value) {
  std::vector<double> values;
  for (std::size_t i = warmup; i < run.steps.size(); ++i) {
    std::optional<double> found = value(run.steps[i]);
    if (!found || !std::isfinite(*found) || *found < 0) return {};
    values.push_back(*found);
  }
  return values;
}

std::optional<double> median_of(const std::vector<double>& values) {
  return values.empty() ? std::nullopt : std::optional(median(values));
}

void put_steps(const LoggedRun& run, Record& record) {
  std::vector<double> seconds =
      after_warmup(run, 0, [](const LoggedStep& step) { return std::optional(step.seconds); });
  Warmup warmup;
  if (!seconds.empty()) warmup = find_warmup(seconds);
  Run& entry = record.runs.emplace_back();
  entry.warmup_steps = static_cast<int>(warmup.warmup_steps);
  entry.steady = warmup.steady;
  record.warmup = {.method = "auto", .steps = entry.warmup_steps, .steady = warmup.steady};
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    const LoggedStep& logged = run.steps[i];
    Step& step = entry.steps.emplace_back();
    step.step = static_cast<int>(logged.step);
    step.seconds = logged.seconds;
    step.loss = logged.loss.value_or(kNotFinite);
    step.warmup = i < warmup.warmup_steps;
    if (logged.loss) record.loss.push_back(*logged.loss);
  }
  std::size_t skip = warmup.warmup_steps;
  if (!seconds.empty()) {
    record.step_time_s.all.assign(seconds.begin() + static_cast<std::ptrdiff_t>(skip),
                                  seconds.end());
    entry.median_s = median(record.step_time_s.all);
    record.step_time_s.median = entry.median_s;
    record.step_time_s.p05 = quantile(record.step_time_s.all, 0.05);
    record.step_time_s.p95 = quantile(record.step_time_s.all, 0.95);
  }
  record.tokens_per_s_per_rank = median_of(
      after_warmup(run, skip, [](const LoggedStep& step) { return step.tokens_per_s_per_rank; }));
  record.model_tflops_per_rank = median_of(
      after_warmup(run, skip, [](const LoggedStep& step) { return step.tflops_per_rank; }));
  record.mfu = median_of(after_warmup(run, skip, [](const LoggedStep& step) { return step.mfu; }));
  if (record.mfu && *record.mfu > 1) {
    throw base::user_error("{}: an MFU of {:.1f} % cannot be; the log's peak FLOP/s is wrong",
                           base::printable(record.source->file), *record.mfu * 100);
  }
}

void put_throughput(const LoggedRun& run, Record& record) {
  const std::optional<std::int64_t>& ranks = run.facts.ranks;
  if (record.tokens_per_s_per_rank && ranks) {
    record.tokens_per_s = *record.tokens_per_s_per_rank * static_cast<double>(*ranks);
  } else if (run.global_tokens_per_step && record.step_time_s.median.value_or(0) > 0) {
    record.tokens_per_s =
        static_cast<double>(*run.global_tokens_per_step) / *record.step_time_s.median;
    if (ranks) record.tokens_per_s_per_rank = *record.tokens_per_s / static_cast<double>(*ranks);
  }
}

}  // namespace

void add_stated_facts(const StatedFacts& stated, const std::string& file, LoggedRun& run) {
  // The model goes by many names; the user's choice of one is no contradiction.
  if (stated.model) run.facts.model = stated.model;
  if (stated.engine) run.facts.engine = stated.engine;
  state(stated.device, run.facts.device, "device", file);
  state(stated.precision, run.facts.precision, "precision", file);
  state(stated.ranks, run.facts.ranks, "ranks", file);
  state(stated.sequence_length, run.facts.sequence_length, "sequence-length", file);
  state(stated.micro_batch, run.facts.micro_batch, "micro-batch", file);
  state(stated.gradient_accumulation, run.facts.gradient_accumulation, "gradient-accumulation",
        file);
}

bool add_step(LoggedRun& run, const LoggedStep& step) {
  if (!run.steps.empty() && step.step <= run.steps.back().step) return false;
  run.steps.push_back(step);
  return true;
}

Record record_of(const LoggedRun& run, Source source, const std::string& created) {
  if (run.steps.empty()) {
    throw base::user_error("{}: holds no step of a training", base::printable(source.file));
  }
  Record record;
  record.created = created;
  source.notes.insert(source.notes.end(), run.notes.begin(), run.notes.end());
  source.extra = run.details;
  record.source = std::move(source);
  put_configuration(run, record);
  put_steps(run, record);
  put_throughput(run, record);
  record.data = {};
  for (const LoggedStep& step : run.steps) {
    if (!step.loss || std::isfinite(*step.loss)) continue;
    record.status = Status::kFailed;
    record.failure =
        Failure{.sentence = fmt::format("the loss of step {} is not finite", step.step),
                .rank = std::nullopt,
                .last_lines = {}};
    break;
  }
  return record;
}

}  // namespace ljtrain::cnp
