// trainer_state.json of transformers; see importers/import.h.
#include <fmt/format.h>

#include <cmath>

#include "base/errors.h"
#include "base/text.h"
#include "formats.h"
#include "log_text.h"

namespace ljtrain::cnp {
namespace {

using base::Json;

std::optional<double> number(const Json& entry, const char* key) {
  auto found = entry.find(key);
  if (found == entry.end()) return std::nullopt;
  return found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

// The two counters that Trainer logs when include_num_input_tokens_seen is set.
struct Counters {
  std::int64_t step = 0;
  double seconds = 0;
  double tokens = 0;
};

std::optional<Counters> counters_of(const Json& entry, std::int64_t step) {
  std::optional<double> seconds = number(entry, "train_runtime");
  std::optional<double> tokens = number(entry, "num_input_tokens_seen");
  if (!seconds || !tokens) return std::nullopt;
  return Counters{.step = step, .seconds = *seconds, .tokens = *tokens};
}

// Tokens a step as long as every interval agrees.
struct Tokens {
  std::optional<std::int64_t> a_step;
  bool differ = false;
};

void derive(const std::optional<Counters>& before, const std::optional<Counters>& now,
            LoggedStep& step, Tokens& tokens) {
  if (!before || !now || now->step <= before->step) return;
  auto steps = static_cast<double>(now->step - before->step);
  double seconds = (now->seconds - before->seconds) / steps;
  if (std::isfinite(seconds) && seconds > 0) step.seconds = seconds;
  std::optional<std::int64_t> a_step = as_count((now->tokens - before->tokens) / steps, 1);
  tokens.differ = tokens.differ || !a_step || (tokens.a_step && *tokens.a_step != *a_step);
  tokens.a_step = a_step;
}

// The last entry: of the training as a whole.
void read_totals(const Json& entry, LoggedRun& run) {
  std::optional<double> seconds = number(entry, "train_runtime");
  if (!seconds || !number(entry, "train_loss")) return;
  run.details["train_runtime_s"] = *seconds;
  for (const char* key : {"train_steps_per_second", "train_samples_per_second", "total_flos"}) {
    if (std::optional<double> value = number(entry, key)) run.details[key] = *value;
  }
}

}  // namespace

LoggedRun read_trainer_state(const base::JsonDocument& document, const StatedFacts& stated) {
  const Json& root = document.root();
  if (!root.is_object() || !root.contains("log_history") || !root["log_history"].is_array()) {
    throw base::user_error("{}: has no list `log_history`; is it a trainer_state.json?",
                           base::printable(document.name()));
  }
  LoggedRun run;
  std::optional<Counters> before = Counters{};
  Tokens tokens;
  bool timed = false;
  for (const Json& entry : root["log_history"]) {
    if (!entry.is_object()) continue;
    read_totals(entry, run);
    std::optional<double> loss = number(entry, "loss");
    if (entry.contains("loss") && entry["loss"].is_null()) loss = kNotFinite;  // it was NaN
    std::optional<std::int64_t> step = as_count(number(entry, "step"), 1);
    if (!loss || !step) continue;  // an evaluation, the totals
    LoggedStep logged;
    logged.step = *step - 1;
    logged.loss = loss;
    std::optional<Counters> now = counters_of(entry, *step);
    derive(before, now, logged, tokens);
    before = now;
    timed = timed || std::isfinite(logged.seconds);
    add_step(run, logged);
  }
  if (std::optional<std::int64_t> batch = as_count(number(root, "train_batch_size"), 1)) {
    run.facts.micro_batch = batch;
  }
  if (!tokens.differ) run.global_tokens_per_step = tokens.a_step;
  add_stated_facts(stated, document.name(), run);
  run.notes.emplace_back(
      timed ? "times a step are differences of train_runtime between entries, evaluation included"
            : "the file tells no times of steps (include_num_input_tokens_seen was off)");
  run.notes.emplace_back("losses are means over the steps since the entry before");
  return run;
}

}  // namespace ljtrain::cnp
