// cnp ablate: what each part of a stack brings.
#include <fmt/format.h>

#include <memory>

#include "ablation/ablation.h"
#include "base/errors.h"
#include "commands.h"

namespace ljtrain::cnp {
namespace {

constexpr const char* kExamples = R"(Examples:
  cnp ablate --model deepspeed/llama3-8b --budget 15m
  cnp ablate --model deepspeed/llama3-8b --leave-one-out --limit-row --budget 45m
  cnp ablate --model deepspeed/llama3-8b --axis zero=1,2,3 --axis micro-batch=1,2,4
  cnp ablate --model deepspeed/llama3-8b --env previous=/opt/ljtrain-0.1 -- --seq 256
  cnp ablate --resume ~/.local/share/ljtrain/records/ablations/ID

What follows `--` goes to every `ljperf benchmark`. Exit codes: 0 done, 1 a row failed or trains to another loss,
2 bad input, 130 interrupted (go on with --resume).
)";

constexpr double kMostHours = 720;  // 30 days
constexpr double kLeastShare = 1e-6;

// "15m", "900", "1h", "90s" -> seconds.
double parse_duration(const std::string& option, const std::string& text) {
  std::size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  std::string unit = text.substr(end);
  double scale = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (end == 0 || scale == 0) {
    throw base::user_error("{} {}: write a time such as 15m, 900s or 1h", option, text);
  }
  double seconds = value * scale;
  if (!(seconds >= 1 && seconds <= kMostHours * 3600)) {
    throw base::user_error("{} {}: must be between 1s and {:.0f}h; write a time such as 15m",
                           option, text, kMostHours);
  }
  return seconds;
}

// "2%" or "0.02" -> 0.02.
double parse_share(const std::string& option, const std::string& text) {
  std::size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  std::string unit = text.substr(end);
  if (end == 0 || (!unit.empty() && unit != "%")) {
    throw base::user_error("{} {}: write a share such as 2%", option, text);
  }
  double share = unit == "%" ? value / 100 : value;
  if (!(share >= kLeastShare && share <= 1)) {
    throw base::user_error("{} {}: must be between {}% and 100%; write a share such as 2%", option,
                           text, kLeastShare * 100);
  }
  return share;
}

struct AblateOptions {
  AblationOptions ablation;
  std::string budget = "15m";
  std::string until = "2%";
  std::string run_timeout = "30m";
  std::vector<std::string> environments;
};

void parse(AblateOptions& options) {
  AblationOptions& ablation = options.ablation;
  ablation.budget_s = parse_duration("--budget", options.budget);
  ablation.until = parse_share("--until", options.until);
  ablation.run_timeout_s = parse_duration("--run-timeout", options.run_timeout);
  for (const std::string& text : options.environments) {
    std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
      throw base::user_error("--env {}: write NAME=VENV or NAME=IMAGE, as in base=/opt/stock",
                             text);
    }
    if (!ablation.environments.emplace(text.substr(0, equals), text.substr(equals + 1)).second) {
      throw base::user_error("--env {}: this name is given twice", text);
    }
  }
}

}  // namespace

void add_ablate(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("ablate", "What each part of the stack brings, with intervals");
  auto options = std::make_shared<AblateOptions>();
  AblationOptions& ablation = options->ablation;
  command->add_option("--model", ablation.model, "ENGINE/NAME, see `ljperf models`");
  command
      ->add_option("--axis", ablation.axes,
                   "KEY=V1,V2,...: a grid instead of the ladder; an option of ljperf benchmark, a "
                   "TrainingArgument or an environment variable")
      ->allow_extra_args(false);
  command
      ->add_option("--env", options->environments,
                   "base=VENV|IMAGE: where Base runs; previous=VENV|IMAGE: a row of that release")
      ->allow_extra_args(false);
  command->add_flag("--leave-one-out", ablation.leave_one_out,
                    "Also all parts but one, for each part");
  command->add_flag("--limit-row", ablation.limit_row,
                    "Also without a memory limit, and without communication and recomputation");
  CLI::Option* budget = command
                            ->add_option("--budget", options->budget,
                                         "Time for the runs after the warm-up: 15m, 900s, 1h")
                            ->capture_default_str();
  CLI::Option* until = command
                           ->add_option("--until", options->until,
                                        "Stop before, when every interval is at most +- this")
                           ->capture_default_str();
  command->add_option("--blocks", ablation.blocks, "Stop after so many blocks");
  command->add_option("--steps", ablation.steps,
                      "Measured steps a run (default: chosen from the budget)");
  command->add_option("--seed", ablation.seed, "Of the order of the rows")->capture_default_str();
  command->add_option("--run-timeout", options->run_timeout, "What one run may take")
      ->capture_default_str();
  command->add_option("--ljperf", ablation.ljperf, "Program that runs the benchmarks");
  command->add_option("--resume", ablation.resume,
                      "Folder of an interrupted ablation: go on with it");
  command->add_flag("--json", ablation.json, "One JSON document on standard output");
  command->add_flag("--dry-run", ablation.dry_run, "Print the runs, start nothing");
  command->add_option("runs", ablation.more, "Options of every ljperf benchmark, after `--`");
  command->footer(kExamples);
  command->callback([&context, options, budget, until] {
    parse(*options);
    options->ablation.budget_given = budget->count() > 0;
    options->ablation.until_given = until->count() > 0;
    context.exit_code = run_ablation(options->ablation);
  });
}

}  // namespace ljtrain::cnp
