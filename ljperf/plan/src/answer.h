// All that `ljperf plan` says, before it is put into words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "subject.h"

namespace ljtrain::ljperf {

// The same training with one thing changed, planned anew.
struct Alternative {
  std::string change;  // what to say: "--zero 2", "recompute every layer"
  bool fits = false;
  double peak_bytes = 0;
  std::int64_t recompute_layers = 0;
  double step_seconds = 0;
};

struct Answer {
  recompute::Plan plan;
  double parameters = 0;
  double trainable_parameters = 0;
  // The largest that fit with as much recomputed as it takes; 0: not even 1 does.
  std::int64_t max_micro_batch = 0;
  std::int64_t max_seq = 0;
  std::vector<Alternative> alternatives;
  std::vector<std::string> warnings;
  std::string shortfall;  // what does not fit, and what is too large; "" when it fits
};

// Other ways to recompute, other ZeRO stages, the head's loss fused; where nothing fits, the
// changes that make it fit, those that cost least first.
std::vector<Alternative> find_alternatives(const Subject& subject, const PlanOptions& options,
                                           const recompute::Plan& plan);
std::int64_t largest_micro_batch(const Subject& subject, const PlanOptions& options);
std::int64_t largest_sequence(const Subject& subject, const PlanOptions& options);

// What the user should know about these settings.
std::vector<std::string> find_warnings(const Subject& subject, const Answer& answer);
std::string describe_shortfall(const Subject& subject, const Answer& answer);

// Ready to paste: DeepSpeed's JSON (null for other engines), the TrainingArguments, and the lines
// that choose layers where those alone cannot.
struct SettingsToPaste {
  base::OrderedJson deepspeed = nullptr;
  base::OrderedJson training_arguments;
  std::string python;
};
// The call as Python writes it.
std::string training_arguments_text(const SettingsToPaste& settings);
SettingsToPaste settings_to_paste(const Subject& subject, const recompute::Plan& plan);

// The document of --json.
base::OrderedJson to_json(const Subject& subject, const Answer& answer);
// The table, 80 columns wide.
std::string to_text(const Subject& subject, const Answer& answer);
// The page of --plot: the step's memory, stacked, and the limit.
std::string to_page(const Subject& subject, const Answer& answer);

// "0-11 full, 12-31 none".
std::string describe_policy(const recompute::Policy& policy);
// "2 x 4 sequences of 8192 tokens on 8 x H100 ..., ZeRO-3".
std::string describe_setup(const Subject& subject);

}  // namespace ljtrain::ljperf
