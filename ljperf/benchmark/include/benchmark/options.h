// What a user may ask of `ljperf benchmark`, as typed; plan.h decides what it means here.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/launch_options.h"

namespace ljtrain::ljperf {

inline constexpr int kDefaultSteps = 30;
inline constexpr double kDefaultStepTimeout = 300;

struct BenchmarkOptions {
  std::string model;             // ENGINE/NAME; with --config only ENGINE, or empty
  std::filesystem::path config;  // a config.json instead of a catalogue model
  std::string scale = "auto";    // auto, full or 1/D
  int steps = kDefaultSteps;     // measured steps a run, after the warm-up
  std::string warmup = "auto";   // auto, or a number of steps
  int repeat = 1;                // runs
  std::optional<int> seq;        // tokens a sequence
  std::optional<int> micro_batch;
  std::optional<int> zero;
  std::optional<int> ranks;
  bool oversubscribe = false;
  std::vector<std::string> with;
  std::vector<std::string> without;
  std::vector<std::string> set;  // KEY=VALUE for TrainingArguments
  std::filesystem::path deepspeed_config;
  std::filesystem::path data;
  std::filesystem::path tokenizer;
  std::string memory_limit;  // of a rank's tensors, as in LJTRAIN_MEMORY_LIMIT; empty: not given
  std::string stock_compile = "none";
  std::string collectives = "real";  // none: they do nothing, a limit and no training
  std::string allocator;             // glibc, jemalloc or tcmalloc; empty: the stack's, or glibc
  std::optional<bool> huge_pages;    // transparent ones; unset: the stack's, or off
  std::string flops = "megatron";
  std::filesystem::path output;
  std::filesystem::path python;
  double step_timeout = kDefaultStepTimeout;  // seconds
  int seed = 1234;
  bool measure_overhead = false;
  bool json = false;
  bool dry_run = false;
  bool env_dump = false;
  bool verbose = false;
  LaunchOptions launch;                   // where the ranks are started
  std::vector<std::string> command_line;  // as typed, for the record
};

// Checks what can be judged without looking at the machine or the model. Throws UserError.
void check(const BenchmarkOptions& options);

// "KEY=VALUE" split at the first '='. Throws UserError.
std::pair<std::string, std::string> split_setting(const std::string& setting);

}  // namespace ljtrain::ljperf
