#include "subject.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "base/errors.h"
#include "base/units.h"
#include "calibration/calibration.h"
#include "catalogue/catalogue.h"
#include "catalogue/devices.h"
#include "catalogue/lookup.h"
#include "catalogue/parameters.h"
#include "cnp/record_file.h"
#include "deepspeed_settings.h"

namespace ljtrain::ljperf {
namespace {

using recompute::Engine;

constexpr double kGiga = 1e9;
// Of a device's memory: what driver and runtime keep, and the model's own error.
constexpr double kReserve = 0.05;
constexpr std::int64_t kDefaultSequence = 8192;
constexpr std::int64_t kLongestSequence = 16'777'216;
constexpr std::int64_t kMostMicroBatch = 65'536;
constexpr std::int64_t kMostDevices = 1'000'000;
constexpr std::int64_t kMostLoraRank = 65'536;
constexpr const char* kDefaultDevice = "h100";
constexpr const char* kHost = "host";

void check_range(const char* option, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw base::user_error("{} {}: must be between {} and {}", option, value, least, most);
  }
}

void check(const PlanOptions& options) {
  if (options.model.empty() == options.config.empty()) {
    throw base::user_error("{}: give --model NAME (see `ljperf models`) or --config config.json",
                           options.model.empty() ? "no model is named" : "two models are named");
  }
  check_range("--seq", options.seq.value_or(1), 1, kLongestSequence);
  check_range("--micro-batch", options.micro_batch, 1, kMostMicroBatch);
  check_range("--accumulation", options.accumulation, 1, kMostMicroBatch);
  check_range("--devices", options.devices, 1, kMostDevices);
  check_range("--lora", options.lora, 0, kMostLoraRank);
  if (options.zero.has_value() && (*options.zero < 0 || *options.zero > 3)) {
    throw base::user_error("--zero {}: DeepSpeed's ZeRO has the stages 0, 1, 2 and 3",
                           *options.zero);
  }
  if (options.recompute.has_value() && options.whole_layers) {
    throw base::user_error("--whole-layers: has no effect beside --recompute; leave one out");
  }
  if (!options.keep.empty() && options.compile) {
    throw base::user_error(
        "--keep names operators, and under --compile layers have kernels instead; leave one out");
  }
  if (!options.keep.empty() && options.whole_layers) {
    throw base::user_error("--keep and --whole-layers contradict each other; leave one out");
  }
}

// The engine's name and the model's, from --model ENGINE/NAME, --engine, or the default.
struct Named {
  std::string engine;
  std::string model;
};

Named split_model(const PlanOptions& options) {
  std::size_t slash = options.model.find('/');
  std::string given = slash == std::string::npos ? "" : options.model.substr(0, slash);
  if (!given.empty() && !options.engine.empty() && given != options.engine) {
    throw base::user_error("--model {} and --engine {}: give one engine", options.model,
                           options.engine);
  }
  std::string engine = given.empty() ? options.engine : given;
  if (engine.empty()) {
    engine = "deepspeed";
  }
  return {.engine = std::string(find_engine(engine)),
          .model = slash == std::string::npos ? options.model : options.model.substr(slash + 1)};
}

recompute::Profile choose_profile(const PlanOptions& options, const ModelConfig& config) {
  if (!options.profile.empty()) {
    recompute::Profile profile = recompute::read_profile(base::JsonDocument::read(options.profile));
    if (profile.family != config.model_type) {
      throw base::user_error("--profile {}: is of `{}`, but the model's model_type is `{}`",
                             options.profile.string(), profile.family, config.model_type);
    }
    return profile;
  }
  if (const recompute::Profile* profile = recompute::find_profile(config.model_type)) {
    return *profile;
  }
  throw base::user_error(
      "there is no memory profile of model_type `{}`; make one with `ljperf trace --config {} "
      "--output profile.json` (it needs PyTorch and transformers), then give --profile "
      "profile.json",
      config.model_type, options.config.empty() ? "config.json" : options.config.string());
}

Engine engine_of(const std::string& engine, int stage, std::int64_t devices) {
  if (engine == "fsdp") {
    return Engine::kFsdp2;
  }
  if (engine == "ddp") {
    return devices == 1 ? Engine::kSingle : Engine::kDdp;
  }
  constexpr std::array kStages{Engine::kZero0, Engine::kZero1, Engine::kZero2, Engine::kZero3};
  return kStages[static_cast<std::size_t>(stage)];
}

recompute::Precision precision_of(const std::string& name, Engine engine) {
  if (name.empty()) {
    return recompute::mixed_precision(engine);
  }
  std::vector<std::string_view> names;
  for (auto precision : {recompute::Precision::kBf16, recompute::Precision::kBf16Autocast,
                         recompute::Precision::kAutocast, recompute::Precision::kFp32}) {
    names.push_back(recompute::precision_name(precision));
    if (names.back() == name) {
      return precision;
    }
  }
  throw base::user_error("--precision {}: choose one of {}", name, fmt::join(names, ", "));
}

recompute::TrainingSetup make_setup(const PlanOptions& options, Subject* subject) {
  recompute::TrainingSetup setup;
  std::int64_t hidden = subject->config.hidden_size;
  int stage = options.zero.value_or(3);
  setup.micro_batch = options.micro_batch;
  setup.gradient_accumulation = options.accumulation;
  if (subject->engine == "deepspeed") {
    setup.knobs = recommended_knobs(stage, hidden);
    if (!options.deepspeed_config.empty()) {
      DeepSpeedSettings settings = read_deepspeed_settings(options.deepspeed_config, hidden);
      stage = options.zero.value_or(settings.stage);
      setup.knobs = settings.knobs;
      setup.micro_batch = settings.micro_batch.value_or(options.micro_batch);
      setup.gradient_accumulation = settings.accumulation.value_or(options.accumulation);
      subject->notes = std::move(settings.notes);
      subject->settings_file = options.deepspeed_config.string();
    }
  } else if (options.zero.has_value() || !options.deepspeed_config.empty()) {
    throw base::user_error("{} belongs to DeepSpeed, but the engine is {}; leave one out",
                           options.zero.has_value() ? "--zero" : "--deepspeed-config",
                           subject->engine);
  }
  if ((options.offload_optimizer || options.offload_parameters) && subject->engine != "deepspeed") {
    throw base::user_error(
        "--offload-optimizer and --offload-parameters are DeepSpeed's; the "
        "engine is {}",
        subject->engine);
  }
  setup.knobs.offload_optimizer |= options.offload_optimizer;
  setup.knobs.offload_param |= options.offload_parameters;
  if (setup.knobs.offload_param && stage != 3) {
    throw base::user_error("offloading parameters needs ZeRO stage 3, and the stage is {}", stage);
  }
  setup.engine = engine_of(subject->engine, stage, options.devices);
  setup.ranks = options.devices;
  setup.seq = options.seq.value_or(longest_sequence(subject->config, kDefaultSequence));
  require_sequence(subject->config, subject->name, setup.seq);
  setup.precision = precision_of(options.precision, setup.engine);
  setup.compiled = options.compile;
  setup.fused_loss = options.fused_loss;
  bool host = options.device == kHost;
  setup.platform = host ? recompute::Platform::kHost : recompute::Platform::kCuda;
  setup.backend = host ? recompute::Backend::kGloo : recompute::Backend::kNccl;
  return setup;
}

double nominal_memory(const PlanOptions& options, std::string* shown) {
  if (!options.device_memory.empty()) {
    auto bytes = static_cast<double>(base::parse_bytes(options.device_memory));
    *shown = base::format_bytes(bytes);
    return bytes;
  }
  if (options.device == kHost) {
    throw base::user_error("--device host: say how much memory a rank has, with --device-memory");
  }
  const DeviceMemory& device =
      find_device(options.device.empty() ? kDefaultDevice : options.device);
  if (device.memory_gb == 0) {
    throw base::user_error("--device {}: its memory is not settled; add --device-memory",
                           options.device);
  }
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  *shown = base::format_bytes(device.memory_gb * kGiB);
  return device.memory_gb * kGiB;
}

Limit choose_limit(const PlanOptions& options) {
  if (!options.limit.empty()) {
    return {.bytes = static_cast<double>(base::parse_bytes(options.limit)), .source = "--limit"};
  }
  const char* variable = std::getenv("LJTRAIN_MEMORY_LIMIT");
  if (variable != nullptr && *variable != '\0') {
    return {.bytes = static_cast<double>(base::parse_bytes(variable)),
            .source = "LJTRAIN_MEMORY_LIMIT"};
  }
  Limit limit;
  limit.bytes = (1 - kReserve) * nominal_memory(options, &limit.source);
  limit.source += " less 5 %";
  return limit;
}

// Rates of the device, and whether they are its own.
struct Rates {
  recompute::DeviceRates rates;
  bool known = false;
};

Rates choose_rates(const PlanOptions& options) {
  // Where nothing is known of the device, only the relation of arithmetic to traffic matters.
  bool unknown =
      options.device == kHost || (options.device.empty() && !options.device_memory.empty());
  std::string name = options.device.empty() || unknown ? kDefaultDevice : options.device;
  const DeviceMemory& memory = find_device(name);
  PeakType type = PeakType::kBf16;
  std::optional<double> peak = peak_flops_per_second(memory.name, type);
  if (!peak) {
    peak = peak_flops_per_second(memory.name, PeakType::kFp16);
  }
  return {.rates = {.name = std::string(memory.name),
                    .flops_per_second = peak.value_or(0),
                    .bytes_per_second = memory.bandwidth * kGiga},
          .known = !unknown};
}

// Seconds of forward and backward of one step of the record's own model under `time`.
double modelled_seconds(const cnp::Record& record, const Subject& subject,
                        const recompute::TimeModel& time) {
  base::JsonDocument document =
      base::JsonDocument::parse(record.configuration.model_config.dump(1), "the record's model");
  ModelConfig config = read_model_config(document);
  const recompute::Profile* profile = recompute::find_profile(config.model_type);
  if (profile == nullptr) {
    throw base::user_error("--record: there is no memory profile of its model_type `{}`",
                           config.model_type);
  }
  recompute::TrainingSetup setup = subject.setup;
  setup.micro_batch = record.micro_batch;
  setup.seq = record.sequence_length;
  setup.ranks = record.ranks;
  recompute::StepSeconds seconds =
      recompute::step_seconds(*profile, shape_of(config, setup.seq, 0), setup, time);
  double recomputed = 0;
  for (std::size_t i = 0; i < seconds.layer_forward.size(); ++i) {
    recomputed += static_cast<int>(i) < record.recompute.layers ? seconds.layer_forward[i] : 0;
  }
  return record.gradient_accumulation *
         (seconds.without_recompute(1) - seconds.optimizer + recomputed);
}

recompute::TimeModel choose_time(const PlanOptions& options, Subject* subject) {
  Rates rates = choose_rates(options);
  subject->device_known = rates.known;
  recompute::TimeModel time(rates.rates);
  if (options.record.empty()) {
    return time;
  }
  cnp::Record record = cnp::read_record(options.record);
  if (!record.breakdown_s || record.configuration.model_config.is_null()) {
    throw base::user_error(
        "--record {}: has no breakdown of the step, or no model; take a record of a completed "
        "`ljperf benchmark`",
        options.record.string());
  }
  double measured = record.breakdown_s->forward + record.breakdown_s->backward;
  double modelled = modelled_seconds(record, *subject, time);
  if (!(measured > 0) || !(modelled > 0)) {
    throw base::user_error("--record {}: its forward and backward took no time",
                           options.record.string());
  }
  subject->device_known = true;
  return time.scaled(measured / modelled, "the record " + record.record_id);
}

}  // namespace

recompute::ModelShape shape_of(const ModelConfig& config, std::int64_t seq,
                               std::int64_t lora_rank) {
  recompute::ModelShape shape;
  shape.family = config.model_type;
  shape.sizes = {.hidden = config.hidden_size,
                 .ffn = config.ffn_size,
                 .heads = config.heads,
                 .kv_heads = config.kv_heads,
                 .head_dim = config.head_dim,
                 .vocab = config.vocab_size,
                 .experts = config.moe.experts,
                 .top_k = config.moe.top_k,
                 .moe_ffn = config.moe.ffn_size,
                 .shared_ffn = config.moe.shared_ffn_size,
                 .lora_rank = lora_rank,
                 .positions = config.max_positions};
  for (const LayerSpec& layer : config.layers) {
    // A window as long as the sequence hides nothing.
    bool windowed = layer.window > 0 && layer.window < seq;
    if (windowed) {
      shape.sizes.window = layer.window;
    }
    using recompute::LayerKind;
    shape.layers.push_back(layer.mixture_of_experts
                               ? (windowed ? LayerKind::kMoeWindow : LayerKind::kMoe)
                               : (windowed ? LayerKind::kDenseWindow : LayerKind::kDense));
  }
  shape.tied_embeddings = config.tied_embeddings;
  shape.lora = lora_rank > 0;
  shape.parameters = shape.lora ? 0 : count_parameters(config).total;
  return shape;
}

Subject make_subject(const PlanOptions& options) {
  check(options);
  Named named = split_model(options);
  ModelConfig config;
  std::string name = options.config.filename().string();
  if (options.config.empty()) {
    config = read_catalogue_model(*find_model(named.engine + "/" + named.model).model);
    name = named.model;
  } else {
    config = read_model_config(base::JsonDocument::read(options.config));
  }
  Subject subject;
  subject.name = std::move(name);
  subject.config = std::move(config);
  subject.lora = options.lora;
  subject.engine = named.engine;
  subject.profile = choose_profile(options, subject.config);
  subject.setup = make_setup(options, &subject);
  for (const std::string& note : subject.config.notes) {
    subject.notes.push_back(note);
  }
  subject.limit = choose_limit(options);
  subject.time = choose_time(options, &subject);
  bool memory_only = options.device.empty() && !options.device_memory.empty();
  subject.device =
      options.device == kHost ? "host ranks"
      : memory_only
          ? "devices of " +
                base::format_bytes(static_cast<double>(base::parse_bytes(options.device_memory)))
          : std::string(find_device(options.device.empty() ? kDefaultDevice : options.device).name);
  return subject;
}

recompute::Predictor predictor_of(const Subject& subject, const recompute::TrainingSetup& setup) {
  return {subject.profile, shape_of(subject.config, setup.seq, subject.lora), setup};
}

namespace {

// On hosts the upper bound of the calibration has to fit, not the prediction alone.
double planning_limit(const recompute::ModelShape& shape, const recompute::TrainingSetup& setup,
                      const recompute::Predictor& predictor, double limit) {
  if (setup.platform != recompute::Platform::kHost) {
    return limit;
  }
  const recompute::Calibration& calibration = recompute::Calibration::in_force();
  const recompute::RiseTerm& term = calibration.rise_term({.family = shape.family,
                                                           .engine = engine_name(setup.engine),
                                                           .compiled = setup.compiled,
                                                           .lora = shape.lora});
  double state =
      predictor.predict(recompute::Policy::first_recomputed(shape.layers.size(), 0)).static_bytes;
  return std::min(limit, calibration.planning_limit(term, state, limit));
}

}  // namespace

recompute::Plan plan_of(const Subject& subject, const recompute::TrainingSetup& setup,
                        const recompute::PlanRequest& asked) {
  recompute::ModelShape shape = shape_of(subject.config, setup.seq, subject.lora);
  recompute::Predictor predictor = predictor_of(subject, setup);
  recompute::PlanRequest request = asked;
  request.limit_bytes = planning_limit(shape, setup, predictor, asked.limit_bytes);
  recompute::StepSeconds seconds =
      recompute::step_seconds(subject.profile, shape, setup, subject.time);
  return recompute::make_plan(predictor, shape, seconds, request);
}

recompute::PlanRequest request_of(const Subject& subject, const PlanOptions& options) {
  recompute::PlanRequest request;
  request.limit_bytes = subject.limit.bytes;
  // A compiled layer's kernels are no operators that a policy could name.
  request.selected_operators = !options.whole_layers && !subject.setup.compiled;
  request.recompute_layers = options.recompute;
  request.micro_batches = static_cast<double>(subject.setup.gradient_accumulation);
  if (!options.keep.empty()) {
    request.kept_operators.emplace(options.keep.begin(), options.keep.end());
  }
  return request;
}

}  // namespace ljtrain::ljperf
