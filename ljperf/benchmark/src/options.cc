#include "benchmark/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "base/errors.h"
#include "base/units.h"
#include "benchmark/host_allocator.h"

namespace ljtrain::ljperf {
namespace {

constexpr int kMostSteps = 1'000'000;
constexpr int kMostRuns = 1000;
constexpr int kLongestSequence = 16'777'216;
constexpr int kMostMicroBatch = 65536;
constexpr int kMostRanks = 4096;
constexpr double kLongestTimeout = 1e6;

void check_range(const char* option, long long value, long long least, long long most) {
  if (value < least || value > most) {
    throw base::user_error("{} {}: must be between {} and {}", option, value, least, most);
  }
}

void check_file(const char* option, const std::filesystem::path& file) {
  std::error_code error;
  if (!file.empty() && !std::filesystem::exists(file, error)) {
    throw base::user_error("{} {}: no such file", option, file.string());
  }
  if (!file.empty() && !std::filesystem::is_regular_file(file, error)) {
    throw base::user_error("{} {}: is no regular file", option, file.string());
  }
}

// TrainingArguments that an option of ours sets, because more than the Trainer depends on them.
struct Reserved {
  const char* key;
  const char* instead;
};
constexpr std::array kReserved{
    Reserved{"max_steps", "--steps and --warmup"},
    Reserved{"num_train_epochs", "--steps"},
    Reserved{"per_device_train_batch_size", "--micro-batch"},
    Reserved{"deepspeed", "--deepspeed-config"},
    Reserved{"fsdp", "--model fsdp/NAME"},
    Reserved{"fsdp_config", "--model fsdp/NAME"},
    Reserved{"output_dir", "--output"},
    Reserved{"use_cpu",
             "--ranks (GPUs are used where there are any; CUDA_VISIBLE_DEVICES= hides them)"},
    Reserved{"seed", "--seed"},
    Reserved{"torch_compile", "--with compile, or --stock-compile full for the stock stack's own"},
    Reserved{"local_rank", "--ranks"},
};

void check_parts(const BenchmarkOptions& options) {
  static constexpr std::array kParts{"stack", "accl", "compile", "recompute"};
  for (const auto* list : {&options.with, &options.without}) {
    for (const std::string& part : *list) {
      if (std::find(kParts.begin(), kParts.end(), part) == kParts.end()) {
        throw base::user_error("`{}` is no part of the stack; the parts are {}", part,
                               fmt::join(kParts, ", "));
      }
    }
  }
  for (const std::string& part : options.with) {
    if (std::find(options.without.begin(), options.without.end(), part) != options.without.end()) {
      throw base::user_error("--with {} and --without {}: give one of them", part, part);
    }
    if (part == "compile" && options.stock_compile != "none") {
      throw base::user_error("--with compile and --stock-compile {}: give one of them",
                             options.stock_compile);
    }
  }
}

}  // namespace

std::pair<std::string, std::string> split_setting(const std::string& setting) {
  std::size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw base::user_error("--set {}: write KEY=VALUE, as in --set learning_rate=1e-4", setting);
  }
  return {setting.substr(0, equals), setting.substr(equals + 1)};
}

void check(const BenchmarkOptions& options) {
  check_range("--steps", options.steps, 1, kMostSteps);
  check_range("--repeat", options.repeat, 1, kMostRuns);
  if (options.seq.has_value()) {
    check_range("--seq", *options.seq, 2, kLongestSequence);
  }
  if (!options.memory_limit.empty()) {
    try {
      base::parse_bytes(options.memory_limit);
    } catch (const base::UserError& error) {
      throw base::user_error("--memory-limit: {}", error.what());
    }
  }
  if (options.micro_batch.has_value()) {
    check_range("--micro-batch", *options.micro_batch, 1, kMostMicroBatch);
  }
  if (options.zero.has_value() && (*options.zero < 0 || *options.zero > 3)) {
    throw base::user_error("--zero {}: DeepSpeed's ZeRO has the stages 0, 1, 2 and 3",
                           *options.zero);
  }
  if (options.ranks.has_value()) {
    check_range("--ranks", *options.ranks, 1, kMostRanks);
  }
  if (!(options.step_timeout > 0 && options.step_timeout <= kLongestTimeout)) {
    throw base::user_error("--step-timeout {}: must be more than 0 and at most {} seconds",
                           options.step_timeout, kLongestTimeout);
  }
  check_range("--seed", options.seed, 0, std::numeric_limits<int>::max());
  if (options.warmup != "auto") {
    int steps = -1;
    const char* end = options.warmup.data() + options.warmup.size();
    auto [rest, error] = std::from_chars(options.warmup.data(), end, steps);
    if (error != std::errc() || rest != end || steps < 0 || steps > kMostSteps) {
      throw base::user_error("--warmup {}: write auto or a number of steps", options.warmup);
    }
  }
  check_parts(options);
  std::span<const std::string> allocators = allocator_names();
  if (!options.allocator.empty() &&
      std::ranges::find(allocators, options.allocator) == allocators.end()) {
    throw base::user_error("--allocator {}: the allocators are {}", options.allocator,
                           fmt::join(allocators, ", "));
  }
  for (const std::string& setting : options.set) {
    auto [key, value] = split_setting(setting);
    for (const Reserved& reserved : kReserved) {
      if (key == reserved.key) {
        throw base::user_error("--set {}: use {} instead", key, reserved.instead);
      }
    }
  }
  check_file("--config", options.config);
  check_file("--deepspeed-config", options.deepspeed_config);
  check_file("--data", options.data);
  std::error_code error;
  if (!options.tokenizer.empty() && !std::filesystem::is_directory(options.tokenizer, error)) {
    throw base::user_error("--tokenizer {}: no such folder", options.tokenizer.string());
  }
  if (!options.tokenizer.empty() && options.data.empty()) {
    throw base::user_error("--tokenizer: has no effect without --data FILE");
  }
  if (!options.config.empty() && options.model.find('/') != std::string::npos) {
    throw base::user_error(
        "--model {} and --config {}: give one of them (with --config, --model names the "
        "engine alone, as in --model fsdp)",
        options.model, options.config.string());
  }
  if (options.config.empty() && options.model.empty()) {
    throw base::user_error(
        "--model is missing: try --model deepspeed/llama3-8b, or see `ljperf models`");
  }
}

}  // namespace ljtrain::ljperf
