#include "benchmark/plan.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/units.h"
#include "benchmark/python_environment.h"
#include "benchmark/run_environment.h"
#include "catalogue/lookup.h"
#include "deepspeed_config.h"

namespace ljtrain::ljperf {
namespace {

using base::Json;
using base::OrderedJson;

constexpr int kHostSequence = 512;
constexpr int kGpuSequence = 8192;
// Steps beyond the measured ones that --warmup auto may find to be warm-up.
constexpr int kLeastWarmupAllowance = 5;
constexpr int kWarmupShare = 4;
// Memory that is not the run's to use on a host: the system and the page cache.
constexpr double kHostReserve = 0.1;
constexpr int kOverheadBlockSteps = 5;

// --set KEY=VALUE: VALUE as JSON where it is JSON, else as text.
std::map<std::string, Json> parse_settings(const std::vector<std::string>& settings) {
  std::map<std::string, Json> parsed;
  for (const std::string& setting : settings) {
    auto [key, text] = split_setting(setting);
    Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (text == "True" || text == "False") {
      value = text == "True";
    }
    parsed[key] = value.is_discarded() ? Json(text) : value;
  }
  return parsed;
}

bool setting_is(const std::map<std::string, Json>& settings, const char* key, bool otherwise) {
  auto found = settings.find(key);
  return found == settings.end() || !found->second.is_boolean() ? otherwise
                                                                : found->second.get<bool>();
}

struct ModelChoice {
  std::string engine;
  std::string name;
  ModelConfig config;
};

ModelChoice choose_model(const BenchmarkOptions& options) {
  if (options.config.empty()) {
    ModelReference found = find_model(options.model);
    return {found.engine, std::string(found.model->id), read_catalogue_model(*found.model)};
  }
  std::string engine(find_engine(options.model.empty() ? "deepspeed" : options.model));
  base::JsonDocument document = base::JsonDocument::read(options.config);
  std::filesystem::path file = std::filesystem::absolute(options.config);
  std::string name =
      file.stem() == "config" && file.has_parent_path() && !file.parent_path().filename().empty()
          ? file.parent_path().filename().string()
          : file.stem().string();
  return {engine, name, read_model_config(document)};
}

void place(BenchmarkPlan& plan) {
  const BenchmarkOptions& options = plan.options;
  plan.on_gpus = !plan.hardware.gpus.empty();
  auto cores = static_cast<int>(plan.hardware.cores.size());
  auto gpus = static_cast<int>(plan.hardware.gpus.size());
  plan.ranks = options.ranks.value_or(plan.on_gpus ? gpus : std::max(1, cores));
  if (plan.on_gpus && plan.ranks > gpus) {
    throw base::user_error(
        "--ranks {}: this machine has {} GPU{}; use at most {}, or hide the GPUs with "
        "CUDA_VISIBLE_DEVICES=",
        plan.ranks, gpus, gpus == 1 ? "" : "s", gpus);
  }
  plan.placement =
      place_ranks(plan.hardware.cores, plan.ranks, options.oversubscribe || plan.on_gpus);
  plan.threads_per_rank = std::max(1, cores / plan.ranks);
}

void choose_sequence(BenchmarkPlan& plan, const ModelConfig& config) {
  std::int64_t usual = plan.on_gpus ? kGpuSequence : kHostSequence;
  if (config.max_positions > 0) {
    usual = std::min(usual, config.max_positions);
  }
  plan.seq = plan.options.seq.value_or(static_cast<int>(usual));
  require_sequence(config, plan.model, plan.seq);
  if (config.max_positions > 0 && plan.seq > config.max_positions) {
    plan.notes.push_back(fmt::format("sequence {} is beyond the {} positions {} was made for",
                                     plan.seq, config.max_positions, plan.model));
  }
}

// The memory that one rank may use, and that the choice of a proxy must respect.
double memory_limit(const BenchmarkPlan& plan) {
  if (plan.on_gpus) {
    double least = INFINITY;
    for (const Gpu& gpu : plan.hardware.gpus) {
      least = std::min(least, static_cast<double>(gpu.memory_bytes));
    }
    return least;
  }
  return static_cast<double>(plan.hardware.usable_memory_bytes()) * (1 - kHostReserve) / plan.ranks;
}

void choose_proxy(BenchmarkPlan& plan, const ModelConfig& config) {
  ProxyBudget budget;
  budget.shape.seq = plan.seq;
  budget.shape.micro_batch = plan.micro_batch;
  budget.shape.ranks = plan.ranks;
  budget.shape.sharding = sharding_of(plan.engine, plan.zero_stage.value_or(0));
  budget.memory_limit_bytes = memory_limit(plan);
  if (!plan.on_gpus) {
    budget.step_budget = kHostStepBudget;
  }
  plan.proxy = make_proxy(config, plan.model, parse_scale(plan.options.scale), budget);
  plan.notes.insert(plan.notes.end(), plan.proxy.notes.begin(), plan.proxy.notes.end());
}

void count_steps(BenchmarkPlan& plan) {
  const BenchmarkOptions& options = plan.options;
  if (options.warmup == "auto") {
    plan.steps_per_run =
        options.steps +
        std::max(kLeastWarmupAllowance, (options.steps + kWarmupShare - 1) / kWarmupShare);
  } else {
    plan.fixed_warmup = std::stoi(options.warmup);
    plan.steps_per_run = options.steps + *plan.fixed_warmup;
  }
}

OrderedJson training_arguments(const BenchmarkPlan& plan,
                               const std::map<std::string, Json>& settings) {
  OrderedJson arguments = {{"bf16", true}, {"gradient_checkpointing", true}};
  if (plan.gradient_accumulation > 1) {
    arguments["gradient_accumulation_steps"] = plan.gradient_accumulation;
  }
  for (const auto& [key, value] : settings) {
    arguments[key] = value;
  }
  return arguments;
}

OrderedJson data_source(const BenchmarkOptions& options) {
  if (options.data.empty()) {
    return {{"kind", "mock"}};
  }
  std::string extension = options.data.extension();
  OrderedJson tokenizer = nullptr;
  if (!options.tokenizer.empty()) {
    tokenizer = std::filesystem::absolute(options.tokenizer).string();
  }
  return {{"kind", extension == ".jsonl" || extension == ".ndjson" ? "jsonl" : "text"},
          {"file", std::filesystem::absolute(options.data).string()},
          {"tokenizer", tokenizer}};
}

// The base stack of docs/ljperf.md: stock packages, autoload off, one bound rank a core, glibc's
// malloc.
base::Environment rank_environment(const BenchmarkPlan& plan, std::vector<std::string>& notes) {
  base::Environment environment = base::current_environment();
  std::string threads = std::to_string(plan.threads_per_rank);
  auto set_threads = environment.find("OMP_NUM_THREADS");
  if (set_threads != environment.end() && set_threads->second != threads && !plan.on_gpus) {
    notes.push_back(fmt::format("OMP_NUM_THREADS={} is replaced by the {} cores of a rank",
                                set_threads->second, threads));
  }
  environment["OMP_NUM_THREADS"] = threads;
  environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0";
  environment["HF_HUB_OFFLINE"] = "1";
  environment["TOKENIZERS_PARALLELISM"] = "false";
  environment["PYTHONUNBUFFERED"] = "1";
  for (const char* ours : {"LJTRAIN_ACCL", "CHECKPOINT_OPTIMIZATION"}) {
    if (environment.erase(ours) > 0) {
      notes.push_back(
          fmt::format("{} is set, but this release holds the base stack only: no effect", ours));
    }
  }
  if (environment.contains("LD_PRELOAD")) {
    notes.push_back(
        fmt::format("LD_PRELOAD={} is not part of the base stack", environment["LD_PRELOAD"]));
  }
  // All ranks are on this host: a host name that does not resolve, or resolves elsewhere, must not
  // matter.
  environment.try_emplace("GLOO_SOCKET_IFNAME", "lo");
  // DeepSpeed's build of its extension looks for ninja in PATH; a virtual environment that is not
  // active has its own.
  if (plan.python.has_parent_path()) {
    environment["PATH"] = plan.python.parent_path().string() + ":" + environment["PATH"];
  }
  return environment;
}

OrderedJson worker_document(const BenchmarkPlan& plan, const std::map<std::string, Json>& settings,
                            const OrderedJson& deepspeed) {
  return {{"schema_version", 1},
          {"engine", plan.engine},
          {"task", std::string(task_name(plan.proxy.config.task))},
          {"model_config", OrderedJson(plan.proxy.config.json)},
          {"seq", plan.seq},
          {"micro_batch", plan.micro_batch},
          {"steps", plan.steps_per_run},
          {"seed", plan.options.seed},
          {"data", data_source(plan.options)},
          {"training_arguments", training_arguments(plan, settings)},
          {"deepspeed", deepspeed},
          {"stock_compile", plan.options.stock_compile},
          {"instrumentation", plan.options.measure_overhead ? "alternate" : "on"},
          {"block_steps", kOverheadBlockSteps},
          {"gemm_peak", !plan.on_gpus},
          {"step_timeout_s", plan.options.step_timeout}};
}

int positive_setting(const std::map<std::string, Json>& settings, const char* key, int otherwise) {
  auto found = settings.find(key);
  if (found == settings.end()) {
    return otherwise;
  }
  if (!found->second.is_number_integer() || found->second < 1 || found->second > 1'000'000) {
    throw base::user_error("--set {}={}: must be a whole number from 1 on", key,
                           found->second.dump());
  }
  return found->second.get<int>();
}

}  // namespace

std::int64_t BenchmarkPlan::tokens_per_step() const {
  return std::int64_t{1} * ranks * micro_batch * gradient_accumulation * seq;
}

BenchmarkPlan make_plan(const BenchmarkOptions& options) {
  check(options);
  BenchmarkPlan plan;
  plan.options = options;
  std::map<std::string, Json> settings = parse_settings(options.set);
  ModelChoice choice = choose_model(options);
  plan.engine = choice.engine;
  plan.model = choice.name;
  plan.flops_convention = parse_flops_convention(options.flops);
  plan.hardware = detect_hardware();
  place(plan);

  OrderedJson deepspeed = nullptr;
  std::optional<int> file_accumulation;
  plan.micro_batch = options.micro_batch.value_or(1);
  if (plan.engine == "deepspeed") {
    DeepSpeedConfig config = make_deepspeed_config(options.deepspeed_config, options.zero,
                                                   options.micro_batch, settings);
    plan.zero_stage = config.zero_stage;
    plan.micro_batch = config.micro_batch.value_or(plan.micro_batch);
    file_accumulation = config.gradient_accumulation;
    deepspeed = config.json;
  } else if (options.zero.has_value() || !options.deepspeed_config.empty()) {
    throw base::user_error(
        "{}: ZeRO is DeepSpeed's; use --model deepspeed/{}, or leave it out",
        options.zero.has_value() ? fmt::format("--zero {}", *options.zero) : "--deepspeed-config",
        plan.model);
  }
  plan.gradient_accumulation =
      positive_setting(settings, "gradient_accumulation_steps", file_accumulation.value_or(1));
  plan.full_checkpointing = setting_is(settings, "gradient_checkpointing", true);
  plan.precision = setting_is(settings, "fp16", false)  ? "fp16"
                   : setting_is(settings, "bf16", true) ? "bf16"
                                                        : "fp32";
  choose_sequence(plan, choice.config);
  choose_proxy(plan, choice.config);
  count_steps(plan);

  plan.python = find_python(options.python);
  plan.worker = worker_document(plan, settings, deepspeed);
  plan.preflight = preflight(
      plan.python, {{"engine", plan.engine},
                    {"training_arguments", Json(plan.worker["training_arguments"])},
                    {"tokenizer", Json(plan.worker["data"].value("tokenizer", OrderedJson()))}});
  for (const Json& sentence : plan.preflight.value("untested", Json::array())) {
    plan.notes.push_back(sentence.get<std::string>());
  }
  if (plan.on_gpus && plan.preflight.value("torch_build", "") == "cpu") {
    throw base::user_error(
        "this machine has GPUs, but PyTorch in {} is a CPU build; install the CUDA build there, or "
        "train on the host by hiding the GPUs with CUDA_VISIBLE_DEVICES=",
        plan.python.string());
  }
  plan.environment = rank_environment(plan, plan.notes);
  return plan;
}

}  // namespace ljtrain::ljperf
