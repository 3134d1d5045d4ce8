#include "benchmark/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/errors.h"
#include "base/units.h"
#include "base_stack.h"
#include "benchmark/python_environment.h"
#include "benchmark/run_environment.h"
#include "catalogue/lookup.h"
#include "deepspeed_config.h"
#include "settings.h"

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
constexpr const char* kHugePagesFile = "/sys/kernel/mm/transparent_hugepage/enabled";

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
  plan.ranks = options.ranks.value_or(plan.on_gpus ? gpus : plan.hardware.usable_cores());
  if (!plan.on_gpus && plan.hardware.usable_cores() < cores) {
    plan.notes.push_back(fmt::format("the cgroup grants the time of {:.3g} of {} cores",
                                     *plan.hardware.cpu_quota, cores));
  }
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

// The memory that one rank may use: $LJTRAIN_MEMORY_LIMIT, else the smallest GPU's, else its share
// of the host's (cgroup limit or RAM) less a reserve for the system.
void choose_memory_limit(BenchmarkPlan& plan) {
  const char* limit = std::getenv("LJTRAIN_MEMORY_LIMIT");
  if (limit != nullptr && *limit != '\0') {
    try {
      plan.memory_limit_bytes = static_cast<double>(base::parse_bytes(limit));
    } catch (const base::UserError& error) {
      throw base::user_error("LJTRAIN_MEMORY_LIMIT: {}", error.what());
    }
    plan.memory_limit_source = "LJTRAIN_MEMORY_LIMIT";
  } else if (plan.on_gpus) {
    plan.memory_limit_bytes = INFINITY;
    for (const Gpu& gpu : plan.hardware.gpus) {
      plan.memory_limit_bytes =
          std::min(plan.memory_limit_bytes, static_cast<double>(gpu.memory_bytes));
    }
    plan.memory_limit_source = "the GPU's";
  } else {
    plan.memory_limit_bytes =
        static_cast<double>(plan.hardware.usable_memory_bytes()) * (1 - kHostReserve) / plan.ranks;
    plan.memory_limit_source =
        fmt::format("{} less {:.0f} %, over {} ranks",
                    plan.hardware.cgroup_limit_bytes.has_value() ? "the cgroup's limit" : "RAM",
                    100 * kHostReserve, plan.ranks);
  }
}

void choose_proxy(BenchmarkPlan& plan, const ModelConfig& config) {
  ProxyBudget budget;
  budget.shape.seq = plan.seq;
  budget.shape.micro_batch = plan.micro_batch;
  budget.shape.ranks = plan.ranks;
  budget.shape.sharding = sharding_of(plan.engine, plan.zero_stage.value_or(0));
  budget.shape.checkpointing = plan.full_checkpointing;
  budget.shape.half_precision = plan.precision != "fp32";
  budget.memory_limit_bytes = plan.memory_limit_bytes;
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

OrderedJson worker_document(const BenchmarkPlan& plan, const Settings& arguments,
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
          {"training_arguments", OrderedJson(Json(arguments))},
          {"deepspeed", deepspeed},
          {"stock_compile", plan.options.stock_compile},
          {"compile", plan.compile},
          {"collectives", plan.options.collectives},
          {"recompute", plan.recompute},
          {"allocator_library", plan.allocator.library.string()},
          {"huge_pages", plan.allocator.expects_huge_pages()},
          {"instrumentation", plan.options.measure_overhead ? "alternate" : "on"},
          {"block_steps", kOverheadBlockSteps},
          {"gemm_peak", !plan.on_gpus},
          {"step_timeout_s", plan.options.step_timeout}};
}

}  // namespace

base::Environment BenchmarkPlan::environment() const {
  base::Environment result = base::current_environment();
  for (const auto& [name, value] : base_stack) {
    if (value.has_value()) {
      result[name] = *value;
    } else {
      result.erase(name);
    }
  }
  return result;
}

std::int64_t BenchmarkPlan::tokens_per_step() const {
  return std::int64_t{1} * ranks * micro_batch * gradient_accumulation * seq;
}

namespace {

// Engine, ZeRO stage, batch and precision: from the options, the DeepSpeed file and --set. Returns
// DeepSpeed's JSON, or null.
OrderedJson choose_training(BenchmarkPlan& plan, Settings& arguments) {
  const BenchmarkOptions& options = plan.options;
  Settings set = parse_settings(options.set);
  DeepSpeedConfig config;
  plan.micro_batch = options.micro_batch.value_or(1);
  if (plan.engine == "deepspeed") {
    config =
        make_deepspeed_config(options.deepspeed_config, options.zero, options.micro_batch, set);
    plan.zero_stage = config.zero_stage;
    plan.micro_batch = config.micro_batch.value_or(plan.micro_batch);
  } else if (options.zero.has_value() || !options.deepspeed_config.empty()) {
    throw base::user_error(
        "{}: ZeRO is DeepSpeed's; use --model deepspeed/{}, or leave it out",
        options.zero.has_value() ? fmt::format("--zero {}", *options.zero) : "--deepspeed-config",
        plan.model);
  }
  arguments = merge_settings(config.decided, set);
  plan.gradient_accumulation = positive(arguments, "gradient_accumulation_steps", 1);
  plan.full_checkpointing = flag(arguments, "gradient_checkpointing", true);
  plan.precision = precision_of(arguments);
  int sequences = plan.micro_batch * plan.gradient_accumulation * plan.ranks;
  if (config.train_batch.has_value() && *config.train_batch != sequences) {
    throw base::user_error(
        "{}: {} is not micro-batch {} x accumulation {} x {} ranks = {}; write \"auto\" or leave "
        "it out",
        config.where_train_batch, *config.train_batch, plan.micro_batch, plan.gradient_accumulation,
        plan.ranks, sequences);
  }
  return plan.engine == "deepspeed" ? config.json : OrderedJson(nullptr);
}

}  // namespace

BenchmarkPlan make_plan(const BenchmarkOptions& options) {
  check(options);
  BenchmarkPlan plan;
  plan.options = options;
  ModelChoice choice = choose_model(options);
  plan.engine = choice.engine;
  plan.model = choice.name;
  plan.flops_convention = parse_flops_convention(options.flops);
  plan.hardware = detect_hardware();
  place(plan);
  Settings arguments;
  OrderedJson deepspeed = choose_training(plan, arguments);
  choose_sequence(plan, choice.config);
  choose_memory_limit(plan);
  choose_proxy(plan, choice.config);
  count_steps(plan);

  if (options.collectives == "none") {
    if (plan.on_gpus) {
      throw base::UserError("--collectives none: on hosts only");
    }
    plan.notes.push_back(
        "the ranks exchange nothing (--collectives none): a limit, not a training; its loss cannot "
        "be compared");
  }
  plan.accl = is_accl_asked_for(options, base::current_environment());
  plan.compile = is_compile_asked_for(options, base::current_environment());
  plan.recompute = is_recompute_asked_for(options, base::current_environment());
  if (plan.recompute && !plan.full_checkpointing) {
    throw base::user_error(
        "recompute chooses among what gradient_checkpointing=true would recompute, and --set "
        "gradient_checkpointing=false leaves nothing: drop one of them");
  }
  plan.allocator = choose_allocator(options, library_folders(base::current_environment()),
                                    kHugePagesFile, plan.notes);
  plan.python = find_python(options.python);
  plan.worker = worker_document(plan, arguments, deepspeed);
  plan.preflight = preflight(
      plan.python, {{"engine", plan.engine},
                    {"training_arguments", Json(arguments)},
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
  plan.base_stack = base_stack_variables(plan, base::current_environment(), plan.notes);
  return plan;
}

}  // namespace ljtrain::ljperf
