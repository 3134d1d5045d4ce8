#include "benchmark/summary.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iterator>

#include "base/errors.h"
#include "benchmark/run_environment.h"
#include "catalogue/devices.h"
#include "catalogue/flops.h"
#include "catalogue/parameters.h"
#include "cnp/record_file.h"
#include "cnp/statistics.h"
#include "cnp/steady_state.h"

namespace ljtrain::ljperf {
namespace {

constexpr double kTera = 1e12;

PeakType peak_type(const std::string& precision) {
  return precision == "bf16"   ? PeakType::kBf16
         : precision == "fp16" ? PeakType::kFp16
                               : PeakType::kFp32;
}

std::vector<std::string> binding_of(const BenchmarkPlan& plan) {
  std::vector<std::string> binding;
  for (std::size_t rank = 0; rank < plan.placement.size(); ++rank) {
    binding.push_back(fmt::format("rank {}: cpus {}", rank, fmt::join(plan.placement[rank], ",")));
  }
  return binding;
}

cnp::Proxy proxy_of(const BenchmarkPlan& plan) {
  cnp::Proxy proxy;
  base::OrderedJson json = proxy_json(plan.proxy);
  proxy.is_proxy = plan.proxy.is_proxy;
  proxy.rule = plan.proxy.rule;
  proxy.scale = json.at("scale").get<std::string>();
  proxy.layers = static_cast<int>(plan.proxy.config.layer_count());
  proxy.of_layers = static_cast<int>(plan.proxy.of_layers);
  proxy.hidden_size = static_cast<int>(plan.proxy.config.hidden_size);
  for (const auto& [key, value] : json.items()) {
    static const std::vector<std::string> kTyped{"is_proxy", "rule",      "scale",
                                                 "layers",   "of_layers", "hidden_size"};
    if (std::find(kTyped.begin(), kTyped.end(), key) == kTyped.end()) {
      proxy.extra[key] = value;
    }
  }
  return proxy;
}

cnp::Allocator allocator_of(const HostAllocator& choice) {
  cnp::Allocator allocator;
  allocator.name = choice.name;
  allocator.huge_pages = choice.huge_pages;
  if (!choice.library.empty()) {
    allocator.library = choice.library.string();
  }
  if (!choice.kernel_huge_pages.empty()) {
    allocator.kernel_huge_pages = choice.kernel_huge_pages;
  }
  return allocator;
}

cnp::Data data_of(const BenchmarkPlan& plan) {
  const base::OrderedJson& source = plan.worker.at("data");
  cnp::Data data;
  data.kind = source.at("kind").get<std::string>();
  if (source.contains("file")) {
    data.file = source["file"].get<std::string>();
  }
  if (source.contains("tokenizer") && source["tokenizer"].is_string()) {
    data.tokenizer = source["tokenizer"].get<std::string>();
  }
  return data;
}

std::map<std::string, std::string> versions_of(const BenchmarkPlan& plan) {
  std::map<std::string, std::string> versions{{"ljtrain", LJTRAIN_VERSION}};
  auto found = plan.preflight.find("versions");
  if (found != plan.preflight.end() && found->is_object()) {
    for (const auto& [name, version] : found->items()) {
      if (version.is_string()) {
        versions[name] = version.get<std::string>();
      }
    }
  }
  return versions;
}

template <typename Value>
void keep_largest(std::vector<std::uint64_t>& per_rank, std::size_t rank, std::size_t ranks,
                  const std::optional<Value>& value) {
  if (value.has_value()) {
    per_rank.resize(ranks, 0);
    per_rank[rank] = std::max<std::uint64_t>(per_rank[rank], *value);
  }
}

std::optional<std::uint64_t> largest(const std::vector<std::uint64_t>& values) {
  return values.empty() ? std::nullopt
                        : std::optional(*std::max_element(values.begin(), values.end()));
}

// What the plan came to at the end of a run; its policy, limit and retries as keys of their own.
void add_recompute(cnp::Record& record, const base::Json& found) {
  cnp::Recompute recompute = record.recompute;
  recompute.layers = found.value("layers", recompute.layers);
  recompute.of = found.value("of", recompute.of);
  base::Json extra = base::Json::object();
  for (const auto& [key, value] : found.items()) {
    if (key == "predicted_peak_bytes" && value.is_number_unsigned()) {
      recompute.predicted_peak_bytes = value.get<std::uint64_t>();
    } else if (key != "layers" && key != "of" && key != "predicted_peak_bytes" &&
               key != "measured_peak_bytes") {
      extra[key] = value;
    }
  }
  recompute.extra = extra;
  record.recompute = recompute;
}

// What each rank said once: memory, collectives, compile counters, device, sharding.
void add_rank_summaries(cnp::Record& record, const RunCollector& run) {
  std::size_t ranks = run.ranks().size();
  std::vector<double> peaks;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const RankSummary& summary = run.ranks()[rank];
    keep_largest(record.peak_memory_bytes.per_rank, rank, ranks, summary.peak_bytes);
    keep_largest(record.peak_memory_bytes.startup_per_rank, rank, ranks,
                 summary.startup_peak_bytes);
    keep_largest(record.resident_peak_bytes.per_rank, rank, ranks, summary.resident_peak_bytes);
    keep_largest(record.huge_page_bytes.per_rank, rank, ranks, summary.huge_page_bytes);
    if (summary.gemm_flops_per_s.has_value()) {
      peaks.push_back(*summary.gemm_flops_per_s);
    }
    if (record.runs.empty() && !summary.digests.empty()) {
      record.data.digests.push_back(fmt::format("{}", fmt::join(summary.digests, " ")));
    }
  }
  const RankSummary& first = run.ranks().front();
  if (!first.sharding.empty()) {
    record.sharding = first.sharding;
  }
  if (first.parameters > 0) {  // what was built, not what the architecture should have
    record.parameters = first.parameters;
    record.trainable_parameters = first.trainable_parameters;
  }
  for (const auto& [name, version] : first.versions) {
    record.environment.versions[name] = version;
  }
  for (const auto& [name, totals] : first.collectives) {
    auto same = std::find_if(record.collectives.begin(), record.collectives.end(),
                             [&](const cnp::Collective& c) { return c.operation == name; });
    if (same == record.collectives.end()) {
      record.collectives.push_back(totals);
    } else {
      same->calls += totals.calls;
      same->bytes += totals.bytes;
      same->seconds += totals.seconds;
    }
  }
  if (first.compile.is_object()) {
    cnp::Compile compile;
    compile.graphs = first.compile.value("graphs", std::int64_t{0});
    compile.graph_breaks = first.compile.value("graph_breaks", std::int64_t{0});
    compile.recompilations = first.compile.value("recompilations", std::int64_t{0});
    compile.seconds = first.compile.value("seconds", 0.0);
    record.compile = compile;
  }
  if (first.recompute.is_object()) {
    add_recompute(record, first.recompute);
  }
  if (!peaks.empty()) {
    // The best that was seen: the peak is what the machine can do, not what it did while something
    // else ran.
    double mean = cnp::mean(peaks);
    record.peak_flops.value = std::max(record.peak_flops.value.value_or(0), mean);
    record.peak_flops.source =
        fmt::format("{} GEMM, measured on all ranks at once", first.gemm_dtype);
  }
}

void compute_utilisation(cnp::Record& record, const BenchmarkPlan& plan) {
  if (!record.step_time_s.median.has_value() || *record.step_time_s.median <= 0) {
    return;
  }
  double seconds = *record.step_time_s.median;
  double tokens = static_cast<double>(record.global_tokens_per_step) / record.ranks;
  record.tokens_per_s_per_rank = tokens / seconds;
  record.tokens_per_s = *record.tokens_per_s_per_rank * record.ranks;
  double flops = *record.flops_per_token * tokens;
  record.model_tflops_per_rank = flops / seconds / kTera;
  if (!record.peak_flops.value.has_value()) {
    return;
  }
  double hardware = hardware_flops_per_token(plan.proxy.config, plan.seq, plan.flops_convention,
                                             std::int64_t{record.recompute.layers}) *
                    tokens;
  double mfu = flops / seconds / *record.peak_flops.value;
  double hfu = hardware / seconds / *record.peak_flops.value;
  if (hfu <= 1) {
    record.mfu = mfu;
    record.hfu = hfu;
  } else if (record.status == cnp::Status::kCompleted) {
    record.status = cnp::Status::kFailed;
    record.failure = cnp::Failure{};
    record.failure->sentence = fmt::format(
        "the measured {} is {:.1f} %: more than the peak of {:.4g} TFLOP/s ({}) allows, so a "
        "figure is wrong; please report it",
        mfu > 1 ? "MFU" : "HFU", 100 * std::max(mfu, hfu), *record.peak_flops.value / kTera,
        record.peak_flops.source);
  }
}

std::vector<const cnp::Step*> measured_steps(const cnp::Record& record) {
  std::vector<const cnp::Step*> steps;
  for (const cnp::Run& run : record.runs) {
    for (const cnp::Step& step : run.steps) {
      if (!step.warmup) {
        steps.push_back(&step);
      }
    }
  }
  return steps;
}

void compute_overhead(cnp::Record& record) {
  std::vector<cnp::Block> blocks;
  for (std::size_t number = 0; number < record.runs.size(); ++number) {
    std::vector<double> seconds;
    std::vector<bool> on;
    for (const cnp::Step& step : record.runs[number].steps) {
      if (!step.warmup) {
        seconds.push_back(step.seconds);
        on.push_back(step.instrumented);
      }
    }
    std::vector<cnp::Block> of_run = cnp::blocks_of_steps(seconds, on, number);
    blocks.insert(blocks.end(), of_run.begin(), of_run.end());
  }
  std::optional<cnp::RatioEstimate> ratio = cnp::on_off_ratio(blocks);
  if (ratio.has_value()) {
    cnp::Overhead overhead;
    overhead.ratio = ratio->ratio;
    overhead.ci95 = ratio->ci95;
    overhead.blocks = ratio->observations;
    record.instrumentation_overhead = overhead;
  }
}

}  // namespace

cnp::Record start_record(const BenchmarkPlan& plan) {
  auto now = std::chrono::system_clock::now();
  cnp::Record record;
  record.record_id = cnp::new_record_id(plan.model, now);
  record.created = cnp::iso8601_utc(now);
  for (const std::string& argument : plan.options.command_line) {
    record.command.push_back(redact_argument(argument));
  }
  record.model = plan.model;
  record.engine = plan.engine;
  record.proxy = proxy_of(plan);
  record.device = plan.on_gpus ? "cuda" : "cpu";
  record.precision = plan.precision;
  record.parameters = static_cast<std::uint64_t>(count_parameters(plan.proxy.config).total);
  record.trainable_parameters = record.parameters;
  record.ranks = plan.ranks;
  record.threads_per_rank = plan.threads_per_rank;
  record.zero_stage = plan.zero_stage;
  record.sequence_length = plan.seq;
  record.micro_batch = plan.micro_batch;
  record.gradient_accumulation = plan.gradient_accumulation;
  record.global_tokens_per_step = plan.tokens_per_step();
  record.seed = static_cast<std::uint64_t>(plan.options.seed);
  record.stock_compile = plan.options.stock_compile;
  // The worker refuses to train if what is asked for is not active.
  record.components.accl = plan.accl;
  record.components.compile = plan.compile;
  record.components.recompute = plan.recompute;
  record.warmup.method = plan.fixed_warmup.has_value() ? "fixed" : "auto";
  record.flops_convention = std::string(flops_convention_name(plan.flops_convention));
  record.flops_per_token =
      model_flops_per_token(plan.proxy.config, plan.seq, plan.flops_convention);
  record.peak_flops.source = "not measured";
  if (plan.on_gpus) {
    const std::string& name = plan.hardware.gpus.front().name;
    record.peak_flops.value = peak_flops_per_second(name, peak_type(plan.precision));
    record.peak_flops.source = record.peak_flops.value.has_value()
                                   ? fmt::format("dense {} peak of {}", plan.precision, name)
                                   : fmt::format("no peak is known for {}", name);
  }
  record.recompute.of = record.proxy.layers;
  record.recompute.layers = plan.full_checkpointing ? record.proxy.layers : 0;
  record.data = data_of(plan);
  record.configuration.training_arguments = redact_settings(plan.worker.at("training_arguments"));
  record.configuration.deepspeed = plan.worker.at("deepspeed");
  record.configuration.model_config = plan.worker.at("model_config");
  record.configuration.environment = relevant_variables(plan.environment());
  record.configuration.binding = binding_of(plan);
  record.configuration.allocator = allocator_of(plan.allocator);
  record.configuration.extra["collectives"] = plan.options.collectives;
  record.configuration.extra["notes"] = plan.notes;
  record.configuration.extra["launcher"] = {{"name", plan.options.launch.launcher},
                                            {"nodes", plan.nodes},
                                            {"ranks_per_node", plan.ranks_per_node}};
  record.environment = describe_environment(plan.hardware, versions_of(plan));
  return record;
}

void add_run(cnp::Record& record, const BenchmarkPlan& plan, const RunCollector& run) {
  add_rank_summaries(record, run);
  cnp::Run entry;
  entry.steps = run.steps();
  std::vector<double> seconds;
  for (const cnp::Step& step : entry.steps) {
    seconds.push_back(step.seconds);
  }
  if (plan.fixed_warmup.has_value()) {
    entry.warmup_steps = std::min<int>(*plan.fixed_warmup, static_cast<int>(seconds.size()));
  } else {
    double allowance = plan.steps_per_run - plan.options.steps;
    cnp::Warmup warmup = cnp::find_warmup(seconds, std::min(0.5, allowance / plan.steps_per_run));
    entry.warmup_steps = static_cast<int>(warmup.warmup_steps);
    entry.steady = warmup.steady;
  }
  std::vector<double> measured(seconds.begin() + entry.warmup_steps, seconds.end());
  if (plan.fixed_warmup.has_value()) {
    entry.steady = cnp::find_warmup(measured, 0).steady;
  }
  for (int step = 0; step < entry.warmup_steps; ++step) {
    entry.steps[static_cast<std::size_t>(step)].warmup = true;
  }
  if (!measured.empty()) {
    entry.median_s = cnp::median(measured);
  }
  if (record.runs.empty()) {
    for (const cnp::Step& step : entry.steps) {
      record.loss.push_back(step.loss);
    }
  }
  record.runs.push_back(std::move(entry));
}

void finish_record(cnp::Record& record, const BenchmarkPlan& plan) {
  std::vector<double> medians;
  record.warmup.steady = !record.runs.empty();
  for (const cnp::Run& run : record.runs) {
    record.warmup.steps = std::max(record.warmup.steps, run.warmup_steps);
    record.warmup.steady = record.warmup.steady && run.steady;
    if (run.median_s.has_value()) {
      medians.push_back(*run.median_s);
    }
  }
  std::vector<const cnp::Step*> steps = measured_steps(record);
  for (const cnp::Step* step : steps) {
    record.step_time_s.all.push_back(step->seconds);
  }
  if (!record.step_time_s.all.empty()) {
    record.step_time_s.median = cnp::median(record.step_time_s.all);
    record.step_time_s.p05 = cnp::quantile(record.step_time_s.all, 0.05);
    record.step_time_s.p95 = cnp::quantile(record.step_time_s.all, 0.95);
    record.step_time_s.ci95 = cnp::interval95_of_runs(medians);
    if (record.step_time_s.ci95.has_value()) {
      record.step_time_s.ci95->low = std::max(0.0, record.step_time_s.ci95->low);
    }
  }
  if (plan.options.measure_overhead) {
    record.peak_memory_bytes.per_rank.clear();  // accounting had gaps
  }
  record.peak_memory_bytes.max = largest(record.peak_memory_bytes.per_rank);
  record.peak_memory_bytes.startup_max = largest(record.peak_memory_bytes.startup_per_rank);
  record.resident_peak_bytes.max = largest(record.resident_peak_bytes.per_rank);
  record.huge_page_bytes.max = largest(record.huge_page_bytes.per_rank);
  record.recompute.measured_peak_bytes = record.peak_memory_bytes.max;
  if (record.step_time_s.median.has_value()) {
    record.breakdown_s = breakdown_of(*record.step_time_s.median, steps);
  }
  if (record.breakdown_s.has_value()) {
    record.breakdown_note =
        "mean over ranks; communication is launching and waiting, for slower peers too";
  } else if (plan.on_gpus) {
    record.breakdown_note = "a host's clock cannot tell where the time of a GPU goes";
  } else if (!steps.empty()) {
    record.breakdown_note = "the measuring extension did not load; see the ranks' logs";
  }
  if (plan.options.measure_overhead) {
    compute_overhead(record);
  }
  compute_utilisation(record, plan);
}

std::optional<cnp::Breakdown> breakdown_of(double median,
                                           const std::vector<const cnp::Step*>& all) {
  std::vector<const cnp::Step*> steps;
  std::copy_if(all.begin(), all.end(), std::back_inserter(steps),
               [](const cnp::Step* step) { return !step->breakdown_s_per_rank.empty(); });
  if (steps.empty()) {
    return std::nullopt;
  }
  std::sort(steps.begin(), steps.end(),
            [](const cnp::Step* a, const cnp::Step* b) { return a->seconds < b->seconds; });
  // As many on either side of the middle: the two middle ones of an even number, or a quarter.
  std::size_t outer = (steps.size() - std::max<std::size_t>(1, steps.size() / 4)) / 2;
  static constexpr std::array kParts{
      &cnp::Breakdown::data,      &cnp::Breakdown::forward,
      &cnp::Breakdown::backward,  &cnp::Breakdown::communication_exposed,
      &cnp::Breakdown::optimizer, &cnp::Breakdown::other};
  cnp::Breakdown sums;
  double total = 0;
  for (std::size_t i = outer; i < steps.size() - outer; ++i) {
    for (const cnp::Breakdown& of_rank : steps[i]->breakdown_s_per_rank) {
      for (auto part : kParts) {
        sums.*part += of_rank.*part;
        total += of_rank.*part;
      }
    }
  }
  for (auto part : kParts) {
    sums.*part *= total > 0 ? median / total : 0;
  }
  return sums;
}

}  // namespace ljtrain::ljperf
