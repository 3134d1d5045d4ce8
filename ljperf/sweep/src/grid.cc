#include "sweep/grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

using base::OrderedJson;

constexpr std::int64_t kHeadDim = 32;
constexpr std::int64_t kPositions = 4096;
constexpr std::int64_t kLargest = 65536;
// Elements: small enough to matter at these sizes.
constexpr std::int64_t kBucket = 200'000;
constexpr std::int64_t kPrefetchBucket = 20'000;
constexpr std::int64_t kPersistence = 1'000;
constexpr std::string_view kZero = "zero";

// SplitMix64 (Steele et al. 2014): the same draw on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}

  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[next() % values.size()];
  }

 private:
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    return mixed ^ (mixed >> 31);
  }

  std::uint64_t state_;
};

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

struct Sizes {
  std::int64_t hidden = 0;
  std::int64_t layers = 0;
  std::int64_t vocabulary = 0;
};

// A small model of the family, as its config.json would be.
OrderedJson small_model(const std::string& family, const Sizes& sizes) {
  std::int64_t heads = sizes.hidden / kHeadDim;
  if (family == "gpt2") {
    return {{"model_type", family},
            {"n_embd", sizes.hidden},
            {"n_layer", sizes.layers},
            {"n_head", heads},
            {"n_inner", 2 * sizes.hidden},
            {"n_positions", kPositions},
            {"vocab_size", sizes.vocabulary},
            {"embd_pdrop", 0.0},
            {"attn_pdrop", 0.0},
            {"resid_pdrop", 0.0},
            {"bos_token_id", 0},
            {"eos_token_id", 0}};
  }
  OrderedJson model = {{"model_type", family},
                       {"hidden_size", sizes.hidden},
                       {"intermediate_size", 2 * sizes.hidden},
                       {"num_hidden_layers", sizes.layers},
                       {"num_attention_heads", heads},
                       {"num_key_value_heads", heads % 2 == 0 ? heads / 2 : heads},
                       {"vocab_size", sizes.vocabulary},
                       {"max_position_embeddings", kPositions},
                       {"pad_token_id", nullptr},
                       {"tie_word_embeddings", family == "gemma"}};
  if (!is_one_of(family, {"qwen2", "phi3"})) {
    model["head_dim"] = kHeadDim;
  }
  if (is_one_of(family, {"mistral", "mixtral", "phi3"})) {
    model["sliding_window"] = nullptr;
  }
  if (family == "mixtral") {
    model["num_local_experts"] = 4;
    model["num_experts_per_tok"] = 2;
  }
  return model;
}

OrderedJson deepspeed_config(int stage) {
  OrderedJson zero = {
      {"stage", stage}, {"reduce_bucket_size", kBucket}, {"allgather_bucket_size", kBucket}};
  if (stage == 3) {
    zero["stage3_prefetch_bucket_size"] = kPrefetchBucket;
    zero["stage3_param_persistence_threshold"] = kPersistence;
  }
  return {{"train_micro_batch_size_per_gpu", "auto"},
          {"gradient_accumulation_steps", "auto"},
          {"gradient_clipping", "auto"},
          {"bf16", {{"enabled", "auto"}}},
          {"zero_optimization", zero}};
}

void check_sizes(const char* option, const std::vector<std::int64_t>& values, std::int64_t least,
                 std::int64_t multiple = 1) {
  if (values.empty()) {
    throw base::user_error("--{} is empty", option);
  }
  for (std::int64_t value : values) {
    if (value < least || value > kLargest || value % multiple != 0) {
      throw base::user_error("--{} {}: it must be {} to {}{}", option, value, least, kLargest,
                             multiple > 1 ? fmt::format(", a multiple of {}", multiple) : "");
    }
  }
}

void check(const SweepGrid& grid) {
  check_sizes("hidden", grid.hidden, kHeadDim, kHeadDim);
  check_sizes("layers", grid.layers, 1);
  check_sizes("vocabulary", grid.vocabulary, 16);
  check_sizes("seq", grid.seq, 2);
  check_sizes("micro-batch", grid.micro_batch, 1);
  check_sizes("ranks", grid.ranks, 1);
  check_sizes("lora", grid.lora, 0);
  check_sizes("count", {grid.count}, 1);
  if (*std::max_element(grid.seq.begin(), grid.seq.end()) > kPositions) {
    throw base::user_error("--seq: the small models have {} positions", kPositions);
  }
  const std::vector<std::string>& families = sweep_families();
  for (const std::string& family : grid.families) {
    if (std::find(families.begin(), families.end(), family) == families.end()) {
      throw base::user_error("--families {}: there are {}", family, fmt::join(families, ", "));
    }
  }
  for (const std::string& engine : grid.engines) {
    if (!is_one_of(engine, {"zero0", "zero1", "zero2", "zero3", "ddp", "fsdp"})) {
      throw base::user_error("--engines {}: there are zero0 to zero3, ddp and fsdp", engine);
    }
  }
  if (grid.families.empty() || grid.engines.empty()) {
    throw base::user_error("--families and --engines need at least one name");
  }
}

}  // namespace

const std::vector<std::string>& sweep_families() {
  static const std::vector<std::string> kFamilies{"llama", "mixtral", "gpt2",  "qwen3",
                                                  "gemma", "mistral", "qwen2", "phi3"};
  return kFamilies;
}

std::vector<SweepJob> draw_jobs(const SweepGrid& grid) {
  check(grid);
  Draw draw(grid.seed);
  std::set<std::string> drawn;
  std::vector<SweepJob> jobs;
  for (std::size_t number = 0; number < static_cast<std::size_t>(grid.count); ++number) {
    const std::string& family = grid.families[number % grid.families.size()];
    const std::string& engine = grid.engines[number % grid.engines.size()];
    Sizes sizes;
    sizes.hidden = draw.of(grid.hidden);
    sizes.layers = draw.of(grid.layers);
    sizes.vocabulary = draw.of(grid.vocabulary);
    std::int64_t seq = draw.of(grid.seq);
    std::int64_t micro_batch = draw.of(grid.micro_batch);
    std::int64_t ranks = draw.of(grid.ranks);
    std::int64_t lora = draw.of(grid.lora);
    if (is_one_of(family, {"mixtral", "gpt2", "gemma"})) {
      lora = 0;
    }
    SweepJob job;
    job.layers = sizes.layers;
    job.id =
        fmt::format("{}-h{}-l{}-v{}-s{}-b{}-{}-r{}{}{}", family, sizes.hidden, sizes.layers,
                    sizes.vocabulary, seq, micro_batch, engine, ranks,
                    lora > 0 ? fmt::format("-lora{}", lora) : "", grid.compile ? "-compiled" : "");
    if (!drawn.insert(job.id).second) {
      continue;
    }
    bool zero = engine.starts_with(kZero);
    job.json = {{"id", job.id},
                {"model", small_model(family, sizes)},
                {"engine", zero ? "deepspeed" : engine},
                {"ranks", ranks},
                {"seq", seq},
                {"micro_batch", micro_batch},
                {"deepspeed", nullptr},
                {"compile", grid.compile},
                {"lora_rank", lora}};
    if (zero) {
      job.json["deepspeed"] = deepspeed_config(engine.back() - '0');
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace ljtrain::ljperf
