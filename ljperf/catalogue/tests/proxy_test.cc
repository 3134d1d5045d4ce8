#include "catalogue/proxy.h"

#include <gtest/gtest.h>

#include "catalogue/parameters.h"
#include "layer_pattern.h"
#include "test_configs.h"

namespace ljtrain::ljperf {
namespace {

using base::Json;

constexpr double kHostMemory = 11.0 * 1024 * 1024 * 1024;  // of one rank

ProxyBudget host_budget(std::int64_t seq = 512) {
  ProxyBudget budget;
  budget.shape = {.seq = seq, .micro_batch = 1, .ranks = 2, .sharding = Sharding::kZero3};
  budget.memory_limit_bytes = kHostMemory;
  budget.step_budget = kHostStepBudget;
  return budget;
}

ProxyBudget no_limits() {
  ProxyBudget budget;
  budget.shape.seq = 512;
  return budget;
}

Proxy scaled(const ModelConfig& config, const char* scale) {
  return make_proxy(config, "model", parse_scale(scale), no_limits());
}

std::string failure(const ModelConfig& config, const char* scale, const ProxyBudget& budget) {
  try {
    make_proxy(config, "model", parse_scale(scale), budget);
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Proxy, ParsesScales) {
  EXPECT_EQ(parse_scale("full").kind, Scale::Kind::kFull);
  EXPECT_EQ(parse_scale("auto").kind, Scale::Kind::kAuto);
  EXPECT_EQ(parse_scale("1/8").divisor, 8);
  EXPECT_EQ(parse_scale("1/1").kind, Scale::Kind::kFull);
  for (const char* bad :
       {"", "1/", "1/0", "1/-2", "2/8", "0.5", "1/8x", "1/99999999999999999999", "half", "1/8.0"}) {
    EXPECT_THROW(parse_scale(bad), base::UserError) << bad;
  }
}

TEST(Proxy, DefaultOfLlama3Is8BAtOneEighth) {
  Proxy proxy =
      make_proxy(catalogue_config("llama3-8b"), "llama3-8b", parse_scale("auto"), host_budget());
  EXPECT_TRUE(proxy.is_proxy);
  EXPECT_EQ(proxy.config.hidden_size, 512);
  EXPECT_EQ(proxy.config.ffn_size, 1792);
  EXPECT_EQ(proxy.config.vocab_size, 16032);
  EXPECT_EQ(proxy.config.heads, 4);
  EXPECT_EQ(proxy.config.kv_heads, 1);
  EXPECT_EQ(proxy.config.layer_count(), 8);
  EXPECT_EQ(proxy.of_layers, 32);
  EXPECT_EQ(proxy.rule,
            "llama3-8b at 1/8 (hidden size, MLP, vocabulary, heads and KV heads divided by 8; head "
            "size and heads per KV head kept), 8 of 32 layers");
  EXPECT_TRUE(proxy.notes.empty());
  // Every other key stays; token ids that the vocabulary no longer has are null.
  Json model = catalogue_json("llama3-8b");
  EXPECT_EQ(proxy.config.json["rope_theta"], model["rope_theta"]);
  EXPECT_EQ(proxy.config.json.size(), model.size());
  EXPECT_TRUE(proxy.config.json["bos_token_id"].is_null());
}

TEST(Proxy, KeepsRatiosOfEveryModelAtEveryScale) {
  for (const CatalogueModel& model : catalogue_models()) {
    ModelConfig config = read_catalogue_model(model);
    for (std::int64_t divisor : legal_divisors(config)) {
      Proxy proxy = make_proxy(config, model.id,
                               {.kind = Scale::Kind::kFraction, .divisor = divisor}, no_limits());
      const ModelConfig& small = proxy.config;
      EXPECT_EQ(small.hidden_size * divisor, config.hidden_size) << proxy.rule;
      EXPECT_EQ(small.ffn_size * divisor, config.ffn_size) << proxy.rule;
      EXPECT_EQ(small.head_dim, config.head_dim) << proxy.rule;
      EXPECT_EQ(small.heads * config.kv_heads, config.heads * small.kv_heads) << proxy.rule;
      EXPECT_EQ(small.vocab_size, (config.vocab_size + divisor - 1) / divisor) << proxy.rule;
      EXPECT_EQ(small.moe.experts, config.moe.experts) << proxy.rule;
      EXPECT_EQ(small.moe.top_k, config.moe.top_k) << proxy.rule;
      EXPECT_EQ(small.moe.ffn_size * divisor, config.moe.ffn_size) << proxy.rule;
      EXPECT_EQ(small.layers[0], config.layers[0]) << proxy.rule;
      EXPECT_GE(small.layer_count(), 2) << proxy.rule;
      EXPECT_EQ(proxy.is_proxy, divisor != 1);
      EXPECT_EQ(proxy.of_parameters, count_parameters(config).total);
    }
  }
}

TEST(Proxy, IllegalScaleListsThoseThatWork) {
  EXPECT_NE(failure(catalogue_config("llama3-8b"), "1/7", no_limits())
                .find("scales that work: full, 1/2, 1/4, 1/8"),
            std::string::npos);
  EXPECT_NE(failure(catalogue_config("qwen3-30b-a3b"), "1/8", no_limits()).find("1/2, 1/4"),
            std::string::npos);
}

TEST(Proxy, AutoStaysWithinTheBudgetOrSaysSo) {
  for (const CatalogueModel& model : catalogue_models()) {
    Proxy proxy =
        make_proxy(read_catalogue_model(model), model.id, parse_scale("auto"), host_budget());
    EXPECT_TRUE(proxy.step_cost <= kHostStepBudget || !proxy.notes.empty()) << proxy.rule;
    EXPECT_LE(proxy.memory.total(), kHostMemory) << proxy.rule;
  }
  Proxy largest = make_proxy(catalogue_config("llama3.1-405b"), "llama3.1-405b",
                             parse_scale("auto"), host_budget());
  EXPECT_EQ(largest.divisor, 8);
  EXPECT_EQ(largest.config.layer_count(), 2);
  ASSERT_EQ(largest.notes.size(), 1);
  EXPECT_NE(largest.notes[0].find("takes longer"), std::string::npos);
  Proxy seventy =
      make_proxy(catalogue_config("llama3-70b"), "llama3-70b", parse_scale("auto"), host_budget());
  EXPECT_EQ(seventy.config.kv_heads, 1);
  EXPECT_GT(seventy.config.layer_count(), 2);
}

TEST(Proxy, AutoIsTheLargestThatFits) {
  ModelConfig llama = catalogue_config("llama3-8b");
  ProxyBudget budget = host_budget();
  budget.step_budget.reset();
  budget.memory_limit_bytes = 140e9;
  EXPECT_FALSE(make_proxy(llama, "m", parse_scale("auto"), budget).is_proxy);
  budget.memory_limit_bytes = 40e9;
  EXPECT_EQ(make_proxy(llama, "m", parse_scale("auto"), budget).divisor, 2);
  budget.memory_limit_bytes = 10e9;
  EXPECT_EQ(make_proxy(llama, "m", parse_scale("auto"), budget).divisor, 4);
  budget.memory_limit_bytes = 1e9;
  EXPECT_NE(failure(llama, "auto", budget).find("does not fit"), std::string::npos);
}

// Found by the fuzzer: depth was given up one layer at a time.
TEST(Proxy, AutoIsQuickForVeryDeepModels) {
  Json json = catalogue_json("gemma-7b");
  json["num_hidden_layers"] = 9999;
  Proxy proxy = make_proxy(read_json(json), "deep", parse_scale("auto"), host_budget());
  EXPECT_LE(proxy.step_cost, kHostStepBudget);
  ProxyBudget one_more = host_budget();
  one_more.step_budget =
      proxy.step_cost * (1.0 + 0.5 / static_cast<double>(proxy.config.layer_count()));
  EXPECT_EQ(make_proxy(read_json(json), "deep", parse_scale("auto"), one_more).config.layer_count(),
            proxy.config.layer_count());
}

TEST(Proxy, FullThatCannotFitSaysByHowMuch) {
  std::string error = failure(catalogue_config("llama3-8b"), "full", host_budget());
  EXPECT_NE(error.find("model at full scale does not fit: about "), std::string::npos) << error;
  EXPECT_NE(error.find("more than the 11.00 GiB there is; the largest part is"), std::string::npos);
  EXPECT_EQ(failure(catalogue_config("bert-large"), "full", host_budget()), "");
}

TEST(Proxy, KeepsWholePeriodsOfLayers) {
  ModelConfig gemma = read_json(gemma3_json());
  Proxy proxy = scaled(gemma, "1/8");
  EXPECT_EQ(proxy.config.layer_count(), 12);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(proxy.config.layers[i], gemma.layers[i]);
  }
  ProxyBudget tight = host_budget();
  tight.step_budget = 1;
  EXPECT_EQ(make_proxy(gemma, "m", parse_scale("auto"), tight).config.layer_count(), 6);

  Json listed = gemma3_json();
  listed["layer_types"] = Json::array();
  for (const LayerSpec& layer : gemma.layers) {
    listed["layer_types"].push_back(layer.window > 0 ? "sliding_attention" : "full_attention");
  }
  EXPECT_EQ(scaled(read_json(listed), "1/8").config.layers, proxy.config.layers);
}

TEST(Proxy, KeepsMixturesAmongDenseLayers) {
  Json json = catalogue_json("qwen3-30b-a3b");
  json["decoder_sparse_step"] = 2;
  ModelConfig config = read_json(json);
  Proxy proxy = scaled(config, "1/4");
  EXPECT_EQ(proxy.config.layer_count(), 24);
  EXPECT_FALSE(proxy.config.layers[0].mixture_of_experts);
  EXPECT_TRUE(proxy.config.layers[23].mixture_of_experts);
  // No period: a dense first layer, as DeepSeek has.
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = {0};
  proxy = scaled(read_json(json), "1/4");
  EXPECT_FALSE(proxy.config.layers[0].mixture_of_experts);
  for (std::size_t i = 1; i < 24; ++i) {
    EXPECT_TRUE(proxy.config.layers[i].mixture_of_experts);
  }
}

TEST(Proxy, KeepsTheShareOfWindowedLayers) {
  Json json = catalogue_json("qwen3-8b");
  json["use_sliding_window"] = true;
  json["sliding_window"] = 64;
  json["max_window_layers"] = 24;  // of 36: two thirds without a window
  Proxy proxy = scaled(read_json(json), "1/8");
  EXPECT_EQ(proxy.config.layer_count(), 9);
  EXPECT_EQ(proxy.config.layers[5].window, 0);
  EXPECT_EQ(proxy.config.layers[6].window, 64);
  EXPECT_EQ(proxy.config.json["max_window_layers"], 6);
  EXPECT_EQ(scaled(catalogue_config("qwen3-8b"), "1/8").config.json["max_window_layers"], 9);
}

TEST(Proxy, WritesKeysThatTheModelLeftToDefaults) {
  Json json = catalogue_json("mistral-7b");
  json.erase("num_key_value_heads");  // 8 by default, whatever the number of heads
  EXPECT_EQ(scaled(read_json(json), "1/8").config.kv_heads, 1);
  Json gpt2{{"model_type", "gpt2"}, {"n_embd", 768},       {"n_layer", 12},
            {"n_head", 12},         {"vocab_size", 50257}, {"eos_token_id", {50256}}};
  Proxy proxy = make_proxy(read_json(gpt2), "gpt2", parse_scale("1/3"), no_limits());
  EXPECT_EQ(proxy.config.hidden_size, 256);
  EXPECT_EQ(proxy.config.ffn_size, 1024);
  EXPECT_EQ(proxy.config.json["n_embd"], 256);
  EXPECT_FALSE(proxy.config.json.contains("hidden_size"));
  EXPECT_EQ(proxy.config.layer_count(), 8);
  EXPECT_TRUE(proxy.config.json["eos_token_id"].is_null());
}

TEST(LayerPattern, FindsPeriods) {
  auto layers = [](std::initializer_list<int> windows) {
    std::vector<LayerSpec> list;
    for (int window : windows) {
      list.push_back({.window = window});
    }
    return list;
  };
  EXPECT_EQ(find_pattern(layers({0})).period, 1);
  EXPECT_EQ(find_pattern(layers({0, 0, 0})).period, 1);
  EXPECT_EQ(find_pattern(layers({1, 0, 1, 0, 1})).period, 2);
  EXPECT_TRUE(find_pattern(layers({1, 0, 1, 0, 1})).periodic);
  EXPECT_FALSE(find_pattern(layers({0, 0, 0, 1})).periodic);
  EXPECT_EQ(choose_layers({.period = 1, .periodic = false}, 3, 9),
            (std::vector<std::int64_t>{0, 4, 8}));
}

TEST(Proxy, JsonHasTheContractsKeys) {
  base::OrderedJson json = proxy_json(scaled(catalogue_config("mixtral-8x7b"), "1/8"));
  EXPECT_EQ(json["is_proxy"], true);
  EXPECT_EQ(json["scale"], "1/8");
  EXPECT_EQ(json["layers"], 8);
  EXPECT_EQ(json["hidden_size"], 512);
  EXPECT_EQ(json["experts"], 8);
  EXPECT_EQ(proxy_json(scaled(catalogue_config("mixtral-8x7b"), "full"))["is_proxy"], false);
}

}  // namespace
}  // namespace ljtrain::ljperf
