#include "deepspeed_settings.h"

#include "base/errors.h"
#include "base/json.h"

namespace ljtrain::ljperf {
namespace {

using base::JsonDocument;
using Pointer = base::Json::json_pointer;

// Elements a reduction of stages 1 and 2: DeepSpeed's own 5e8 takes 1 GB twice.
constexpr double kReduceBucket = 5e7;
constexpr double kMostElements = 1e13;

class Reader {
 public:
  explicit Reader(const JsonDocument& document) : document_(document) {}

  // Null when absent or "auto".
  const base::Json* find(const std::string& key) const {
    Pointer pointer(key);
    if (!document_.root().contains(pointer) || document_.root()[pointer] == "auto") {
      return nullptr;
    }
    return &document_.root()[pointer];
  }
  bool is_auto(const std::string& key) const {
    Pointer pointer(key);
    return document_.root().contains(pointer) && document_.root()[pointer] == "auto";
  }
  void number(const std::string& key, double* value) const {
    if (const base::Json* found = find(key)) {
      if (!found->is_number() || !(found->get<double>() >= 0) ||
          found->get<double>() > kMostElements) {
        throw base::user_error("{}: {} must be a number from 0 to 1e13, or \"auto\"", where(key),
                               found->dump());
      }
      *value = found->get<double>();
    }
  }
  std::optional<std::int64_t> count(const std::string& key, std::int64_t most) const {
    const base::Json* found = find(key);
    if (found == nullptr) {
      return std::nullopt;
    }
    if (!found->is_number_integer() || *found < 0 || *found > most) {
      throw base::user_error("{}: {} must be a whole number from 0 to {}", where(key),
                             found->dump(), most);
    }
    return found->get<std::int64_t>();
  }
  std::optional<bool> boolean(const std::string& key) const {
    const base::Json* found = find(key);
    if (found == nullptr) {
      return std::nullopt;
    }
    if (!found->is_boolean()) {
      throw base::user_error("{}: must be true or false", where(key));
    }
    return found->get<bool>();
  }
  bool object(const std::string& key) const {
    const base::Json* found = find(key);
    if (found != nullptr && !found->is_object()) {
      throw base::user_error("{}: must be an object", where(key));
    }
    return found != nullptr;
  }
  // Whether states go to the host (or disk) by this section.
  bool offloads(const std::string& section) const {
    if (!object(section)) {
      return false;
    }
    const base::Json* device = find(section + "/device");
    return device != nullptr && *device != "none";
  }

 private:
  std::string where(const std::string& key) const { return document_.where(Pointer(key)); }

  const JsonDocument& document_;
};

void read_knobs(const Reader& reader, recompute::EngineKnobs* knobs) {
  const std::string zero = "/zero_optimization/";
  reader.number(zero + "reduce_bucket_size", &knobs->reduce_bucket_size);
  reader.number(zero + "allgather_bucket_size", &knobs->allgather_bucket_size);
  reader.number(zero + "stage3_prefetch_bucket_size", &knobs->prefetch_bucket_size);
  reader.number(zero + "stage3_param_persistence_threshold", &knobs->persistence_threshold);
  reader.number(zero + "stage3_max_live_parameters", &knobs->max_live_parameters);
  reader.number(zero + "stage3_max_reuse_distance", &knobs->max_reuse_distance);
  reader.number(zero + "sub_group_size", &knobs->sub_group_size);
  knobs->overlap_comm = reader.boolean(zero + "overlap_comm");
  knobs->contiguous_gradients = reader.boolean(zero + "contiguous_gradients").value_or(true);
  knobs->offload_optimizer = reader.offloads(zero + "offload_optimizer");
  knobs->offload_param = reader.offloads(zero + "offload_param");
  knobs->leaf_layers = reader.object(zero + "leaf_module");
  double clipping = 1;  // "auto": transformers' max_grad_norm
  if (reader.find("/gradient_clipping") == nullptr && !reader.is_auto("/gradient_clipping")) {
    clipping = 0;  // DeepSpeed's own default
  }
  reader.number("/gradient_clipping", &clipping);
  knobs->gradient_clipping = clipping > 0;
}

}  // namespace

DeepSpeedSettings read_deepspeed_settings(const std::filesystem::path& file, std::int64_t hidden) {
  JsonDocument document = JsonDocument::read(file);
  if (!document.root().is_object()) {
    throw base::user_error("{}: must hold a JSON object, as DeepSpeed's configuration does",
                           file.string());
  }
  Reader reader(document);
  DeepSpeedSettings settings;
  if (reader.object("/zero_optimization")) {
    settings.stage = static_cast<int>(reader.count("/zero_optimization/stage", 3).value_or(0));
  }
  const std::string zero = "/zero_optimization/";
  recompute::EngineKnobs filled = recompute::auto_knobs(hidden);
  if (reader.is_auto(zero + "reduce_bucket_size")) {
    settings.knobs.reduce_bucket_size = filled.reduce_bucket_size;
  }
  if (reader.is_auto(zero + "stage3_prefetch_bucket_size")) {
    settings.knobs.prefetch_bucket_size = filled.prefetch_bucket_size;
  }
  if (reader.is_auto(zero + "stage3_param_persistence_threshold")) {
    settings.knobs.persistence_threshold = filled.persistence_threshold;
  }
  read_knobs(reader, &settings.knobs);
  constexpr std::int64_t kMostSequences = 1'000'000;
  settings.micro_batch = reader.count("/train_micro_batch_size_per_gpu", kMostSequences);
  settings.accumulation = reader.count("/gradient_accumulation_steps", kMostSequences);
  if (document.root().contains("activation_checkpointing")) {
    settings.notes.push_back(fmt::format(
        "{}: DeepSpeed reads this block and transformers never uses it; gradient_checkpointing in "
        "TrainingArguments is what counts",
        document.where(Pointer("/activation_checkpointing"))));
  }
  if (reader.find("/fp16/enabled") != nullptr && *reader.find("/fp16/enabled") == true) {
    settings.notes.emplace_back("fp16 is counted as bf16: the sizes are the same");
  }
  return settings;
}

recompute::EngineKnobs recommended_knobs(int stage, std::int64_t hidden) {
  recompute::EngineKnobs knobs;
  if (stage == 3) {
    knobs = recompute::auto_knobs(hidden);
  } else {
    knobs.reduce_bucket_size = kReduceBucket;
    knobs.allgather_bucket_size = kReduceBucket;
  }
  knobs.overlap_comm = true;
  return knobs;
}

}  // namespace ljtrain::ljperf
