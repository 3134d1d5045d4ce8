// Seeded mutations of the catalogue's files through the reader and everything computed from it:
// only UserError may escape. fuzz/model_config_fuzz.cc is the open-ended version of this test.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "catalogue/flops.h"
#include "catalogue/listing.h"
#include "catalogue/proxy.h"
#include "test_configs.h"

namespace ljtrain::ljperf {
namespace {

constexpr int kIterations = 20'000;
constexpr std::uint32_t kSeed = 20240601;

class Mutator {
 public:
  std::string mutate(std::string text) {
    switch (below(4)) {
      case 0:
        return flip_bytes(std::move(text));
      case 1:
        return text.substr(0, below(text.size() + 1));
      default:
        return swap_values(text);
    }
  }

  const std::string& any_of(const std::vector<std::string>& list) {
    return list[below(list.size())];
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }

  std::string flip_bytes(std::string text) {
    for (std::size_t flips = 1 + below(4); flips > 0; --flips) {
      text[below(text.size())] = static_cast<char>(below(256));
    }
    return text;
  }

  // One to three keys get a hostile value, or the value of another key, or disappear.
  std::string swap_values(const std::string& text) {
    static const std::vector<base::Json> kHostile{0,
                                                  1,
                                                  2,
                                                  3,
                                                  7,
                                                  -1,
                                                  1e30,
                                                  0.5,
                                                  nullptr,
                                                  true,
                                                  "",
                                                  "x",
                                                  base::Json::array(),
                                                  base::Json::object(),
                                                  base::Json::array({1, "a", nullptr}),
                                                  INT64_MIN,
                                                  INT64_MAX,
                                                  UINT64_MAX,
                                                  268'435'456,
                                                  268'435'455,
                                                  65536,
                                                  10000,
                                                  "llama",
                                                  "bert",
                                                  "gpt2",
                                                  "gemma3_text",
                                                  "qwen3_moe",
                                                  "mixtral",
                                                  "unheard_of"};
    base::Json json = base::Json::parse(text);
    for (std::size_t swaps = 1 + below(3); swaps > 0; --swaps) {
      auto key = std::next(json.begin(), static_cast<std::ptrdiff_t>(below(json.size())));
      auto other = std::next(json.begin(), static_cast<std::ptrdiff_t>(below(json.size())));
      switch (below(6)) {
        case 0:
          *key = other.value();
          break;
        case 1:
          json[any_of({"layer_types", "mlp_only_layers", "max_window_layers", "head_dim",
                       "n_routed_experts", "first_k_dense_replace", "sliding_window", "num_experts",
                       "decoder_sparse_step", "model_type", "shared_expert_intermediate_size"})] =
              kHostile[below(kHostile.size())];
          break;
        case 2:
          if (json.size() > 1) {
            json.erase(key);
          }
          break;
        default:
          *key = kHostile[below(kHostile.size())];
      }
    }
    return json.dump();
  }

  std::mt19937 random_{kSeed};  // NOLINT(bugprone-random-generator-seed): the same on every run
};

// True when the text was accepted; anything but UserError escapes.
bool accepted(const std::string& text) {
  ProxyBudget budget;
  budget.shape.seq = 512;
  try {
    ModelConfig config = read_text(text);
    Proxy full = make_proxy(config, "fuzzed", parse_scale("full"), budget);
    describe_model("fuzzed", "fuzzed", full, budget.shape.seq);
    EXPECT_GT(model_flops_per_token(config, 512, FlopsConvention::kMegatron), 0);
    budget.memory_limit_bytes = 12e9;
    budget.step_budget = kHostStepBudget;
    make_proxy(config, "fuzzed", parse_scale("auto"), budget);
    return true;
  } catch (const base::UserError& error) {
    EXPECT_GT(std::string(error.what()).size(), 10);
    return false;
  }
}

TEST(MutationFuzz, OnlyUserErrorEscapes) {
  std::vector<std::string> seeds;
  for (const CatalogueModel& model : catalogue_models()) {
    seeds.push_back(catalogue_json(model.id).dump());
  }
  seeds.push_back(gemma3_json().dump());
  Mutator mutator;
  int taken = 0;
  for (int i = 0; i < kIterations; ++i) {
    std::string text = mutator.mutate(mutator.any_of(seeds));
    SCOPED_TRACE(text);
    ASSERT_NO_THROW(taken += accepted(text) ? 1 : 0);
  }
  // Both sides are reached: what is checked after reading, and what is refused.
  EXPECT_GT(taken, kIterations / 20);
  EXPECT_LT(taken, kIterations - kIterations / 20);
}

}  // namespace
}  // namespace ljtrain::ljperf
