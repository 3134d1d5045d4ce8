#include "catalogue/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "test_configs.h"

namespace ljtrain::ljperf {
namespace {

using base::Json;

// The error for llama3-8b with one key changed.
std::string error_with(const std::string& key, const Json& value) {
  Json json = catalogue_json("llama3-8b");
  json[key] = value;
  return error_of(json.dump(1));
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::int64_t windows(const ModelConfig& config) {
  return std::count_if(config.layers.begin(), config.layers.end(),
                       [](const LayerSpec& layer) { return layer.window > 0; });
}

TEST(ModelConfig, ReadsTheCatalogue) {
  EXPECT_EQ(catalogue_models().size(), 9);
  for (const CatalogueModel& model : catalogue_models()) {
    ModelConfig config = read_catalogue_model(model);
    EXPECT_FALSE(config.generic) << model.id;
    EXPECT_TRUE(config.notes.empty()) << model.id;
    EXPECT_FALSE(config.json.contains("_ljtrain")) << model.id;
    EXPECT_EQ(base::Json(config.architecture), config.json["architectures"][0]) << model.id;
    EXPECT_EQ(catalogue_entry(model)["id"], model.id);
    EXPECT_TRUE(catalogue_entry(model)["source"].get<std::string>().starts_with("https://"));
  }
}

TEST(ModelConfig, ReadsShapes) {
  ModelConfig llama = catalogue_config("llama3-8b");
  EXPECT_EQ(llama.hidden_size, 4096);
  EXPECT_EQ(llama.layer_count(), 32);
  EXPECT_EQ(llama.kv_heads, 8);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_FALSE(llama.tied_embeddings);
  EXPECT_EQ(windows(catalogue_config("mistral-7b")), 32);
  EXPECT_EQ(catalogue_config("mistral-7b").layers[0].window, 4096);
  ModelConfig gemma = catalogue_config("gemma-7b");
  EXPECT_TRUE(gemma.tied_embeddings);
  EXPECT_EQ(gemma.query_size(), 4096);  // wider than the model: 16 heads of 256
  ModelConfig moe = catalogue_config("qwen3-30b-a3b");
  EXPECT_EQ(moe.moe.experts, 128);
  EXPECT_EQ(moe.moe.top_k, 8);
  EXPECT_TRUE(moe.layers[47].mixture_of_experts);
  ModelConfig bert = catalogue_config("bert-large");
  EXPECT_EQ(bert.task, Task::kMaskedLm);
  EXPECT_EQ(bert.learned_positions, 512);
}

TEST(ModelConfig, PlacesWindows) {
  Json json = gemma3_json();
  ModelConfig gemma = read_json(json);
  EXPECT_EQ(windows(gemma), 40);
  EXPECT_EQ(gemma.layers[5].window, 0);
  EXPECT_EQ(gemma.layers[6].window, 1024);
  json["num_hidden_layers"] = 2;
  json["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(read_json(json).layers[0].window, 0);
  EXPECT_EQ(read_json(json).layers[1].window, 1024);

  Json qwen = catalogue_json("qwen3-8b");
  qwen["sliding_window"] = 1000;
  EXPECT_EQ(windows(read_json(qwen)), 0);  // use_sliding_window is false
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 30;
  EXPECT_EQ(windows(read_json(qwen)), 6);
  EXPECT_EQ(read_json(qwen).layers[30].window, 1000);

  Json mistral = catalogue_json("mistral-7b");
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(windows(read_json(mistral)), 0);
  mistral.erase("sliding_window");  // absent is transformers' default, not none
  EXPECT_EQ(windows(read_json(mistral)), 32);
}

TEST(ModelConfig, PlacesExperts) {
  Json json = catalogue_json("qwen3-30b-a3b");
  json["decoder_sparse_step"] = 2;
  json["mlp_only_layers"] = {3, 99};
  ModelConfig config = read_json(json);
  EXPECT_FALSE(config.layers[0].mixture_of_experts);
  EXPECT_TRUE(config.layers[1].mixture_of_experts);
  EXPECT_FALSE(config.layers[3].mixture_of_experts);
  EXPECT_TRUE(config.layers[5].mixture_of_experts);
}

TEST(ModelConfig, UnknownFamilyIsReadAsGeneric) {
  Json json = catalogue_json("llama3-8b");
  json["model_type"] = "olmo9";
  json["architectures"] = {"Olmo9ForCausalLM"};
  ModelConfig config = read_json(json);
  EXPECT_TRUE(config.generic);
  ASSERT_EQ(config.notes.size(), 1);
  EXPECT_TRUE(mentions(config.notes[0], R"("olmo9" is not known here)"));
  json["architectures"] = {"Olmo9ForMaskedLM"};
  EXPECT_EQ(read_json(json).task, Task::kMaskedLm);
  json["architectures"] = nullptr;
  json["n_routed_experts"] = 16;
  json["num_experts_per_tok"] = 4;
  json["moe_intermediate_size"] = 100;
  json["n_shared_experts"] = 2;
  json["first_k_dense_replace"] = 3;
  config = read_json(json);
  EXPECT_EQ(config.moe.shared_ffn_size, 200);
  EXPECT_FALSE(config.layers[2].mixture_of_experts);
  EXPECT_TRUE(config.layers[3].mixture_of_experts);
}

TEST(ModelConfig, MissingKeysAreNamed) {
  std::string error = error_of(R"({"model_type": "olmo9", "hidden_size": 64})");
  EXPECT_EQ(error,
            "config.json: model_type `olmo9` needs the keys `num_hidden_layers`, "
            "`num_attention_heads`, `vocab_size`, `intermediate_size`, absent or null here; take "
            "them from the model's published config.json");
  EXPECT_TRUE(mentions(error_of(R"({"model_type": "gpt2"})"), "`n_embd`"));
  EXPECT_TRUE(mentions(error_of(R"({"hidden_size": 64})"), "`model_type` is missing"));
  EXPECT_TRUE(mentions(error_with("hidden_size", nullptr), "`hidden_size`, absent or null"));
}

TEST(ModelConfig, ErrorsNameLineAndKey) {
  std::string text =
      R"({
 "model_type": "llama",
 "hidden_size": 4096,
 "num_attention_heads": 30,
 "intermediate_size": 8,
 "vocab_size": 8,
 "num_hidden_layers": 2
})";
  EXPECT_EQ(error_of(text),
            "config.json:4: key `num_attention_heads` is 30, which does not divide hidden_size "
            "(4096); choose a divisor of 4096");
}

class ImpossibleValue : public testing::TestWithParam<std::pair<std::string, Json>> {};

TEST_P(ImpossibleValue, IsAUserErrorThatNamesTheKey) {
  const auto& [key, value] = GetParam();
  std::string error = error_with(key, value);
  EXPECT_TRUE(mentions(error, "config.json:")) << value << ": " << error;
  EXPECT_TRUE(mentions(error, key)) << value << ": " << error;
}

INSTANTIATE_TEST_SUITE_P(
    Values, ImpossibleValue,
    testing::Values(
        std::pair{"num_attention_heads", Json(30)}, std::pair{"num_attention_heads", Json(0)},
        std::pair{"num_attention_heads", Json("32")}, std::pair{"num_key_value_heads", Json(5)},
        std::pair{"num_key_value_heads", Json(64)}, std::pair{"num_key_value_heads", Json(-8)},
        std::pair{"num_hidden_layers", Json(0)}, std::pair{"num_hidden_layers", Json(-1)},
        std::pair{"num_hidden_layers", Json(1000000000)}, std::pair{"hidden_size", Json(1e30)},
        std::pair{"hidden_size", Json(4096.0)}, std::pair{"hidden_size", Json(true)},
        std::pair{"hidden_size", Json(Json::array({4096}))},
        std::pair{"hidden_size", Json(Json::object())},
        std::pair{"hidden_size", Json(std::numeric_limits<std::uint64_t>::max())},
        std::pair{"hidden_size", Json(std::numeric_limits<std::int64_t>::min())},
        std::pair{"intermediate_size", Json(std::nan(""))},  // written as null
        std::pair{"vocab_size", Json(0)}, std::pair{"head_dim", Json(3)},
        std::pair{"head_dim", Json(0)}, std::pair{"tie_word_embeddings", Json(1)},
        std::pair{"attention_bias", Json("no")}, std::pair{"model_type", Json(7)},
        std::pair{"pad_token_id", Json(128256)}, std::pair{"is_encoder_decoder", Json(true)},
        std::pair{"vocab_size", Json("é")}));

TEST(ModelConfig, ImpossibleValuesOfOtherFamilies) {
  Json mixtral = catalogue_json("mixtral-8x7b");
  mixtral["num_experts_per_tok"] = 9;
  EXPECT_TRUE(mentions(error_of(mixtral.dump(1)), "each token goes to 9 of 8 experts"));
  mixtral = catalogue_json("mixtral-8x7b");
  mixtral["num_key_value_heads"] = nullptr;  // transformers refuses it, too
  EXPECT_TRUE(mentions(error_of(mixtral.dump(1)), "`num_key_value_heads` is null; write a value"));
  Json llama = catalogue_json("llama3-8b");
  llama["num_key_value_heads"] = nullptr;  // but here it means as many as heads
  EXPECT_EQ(read_json(llama).kv_heads, 32);
  Json qwen = catalogue_json("qwen3-30b-a3b");
  qwen["mlp_only_layers"] = "none";
  EXPECT_TRUE(mentions(error_of(qwen.dump(1)), R"(`mlp_only_layers` is "none")"));
  Json gemma = gemma3_json();
  gemma["layer_types"] = {"full_attention"};
  EXPECT_TRUE(mentions(error_of(gemma.dump(1)), "has 1 entries, but the model has 48 layers"));
  Json bert = catalogue_json("bert-large");
  bert["is_decoder"] = true;
  EXPECT_TRUE(mentions(error_of(bert.dump(1)), "`is_decoder` is true"));
  EXPECT_TRUE(mentions(error_of(R"({"model_type": "gemma3", "text_config": {}})"),
                       "`text_config` belongs to a multimodal model"));
  EXPECT_TRUE(mentions(error_of("[1]"), "is a list, not an object"));
}

TEST(ModelConfig, SequenceMustFitLearnedPositions) {
  ModelConfig bert = catalogue_config("bert-large");
  EXPECT_NO_THROW(require_sequence(bert, "bert-large", 512));
  EXPECT_THROW(require_sequence(bert, "bert-large", 513), base::UserError);
  EXPECT_THROW(require_sequence(bert, "bert-large", 0), base::UserError);
  EXPECT_NO_THROW(require_sequence(catalogue_config("llama3-8b"), "llama3-8b", 1'000'000));
}

TEST(ModelConfig, MptHasKeysOfItsOwn) {
  Json json{{"model_type", "mpt"},
            {"d_model", 4096},
            {"n_heads", 32},
            {"n_layers", 32},
            {"vocab_size", 50432},
            {"max_seq_len", 2048},
            {"attn_config", {{"alibi", true}}}};
  ModelConfig mpt = read_json(json);
  EXPECT_EQ(mpt.architecture, "MptForCausalLM");
  EXPECT_EQ(mpt.hidden_size, 4096);
  EXPECT_EQ(mpt.ffn_size, 16384);
  EXPECT_EQ(mpt.kv_heads, 32);
  EXPECT_TRUE(mpt.tied_embeddings);
  EXPECT_TRUE(mpt.notes.empty());
  EXPECT_NO_THROW(require_sequence(mpt, "mpt", 2048));
  EXPECT_THROW(require_sequence(mpt, "mpt", 2049), base::UserError);  // the ALiBi bias ends there
  // What transformers takes and ignores is said.
  json["expansion_ratio"] = 8;
  json["no_bias"] = false;
  json["attn_config"] = {{"qk_ln", true}};
  mpt = read_json(json);
  EXPECT_EQ(mpt.ffn_size, 16384);
  ASSERT_EQ(mpt.notes.size(), 3);
  EXPECT_TRUE(mentions(mpt.notes[0], "expansion_ratio is 8"));
  EXPECT_TRUE(mentions(mpt.notes[2], "attn_config.qk_ln is true"));
  json["attn_config"] = 3;
  EXPECT_TRUE(mentions(error_of(json.dump(1)), "`attn_config` is 3; write an object"));
  json["attn_config"] = nullptr;
  json["d_model"] = "wide";
  EXPECT_TRUE(mentions(error_of(json.dump(1)), R"(`d_model` is "wide")"));
  EXPECT_TRUE(mentions(error_of(R"({"model_type": "mpt", "d_model": 64})"),
                       "`n_layers`, `n_heads`, `vocab_size`, absent"));
}

TEST(ModelConfig, AbsurdSizesAreRefusedBeforeTheyOverflow) {
  Json json = catalogue_json("mixtral-8x7b");
  json["hidden_size"] = 268'435'456;
  json["intermediate_size"] = 268'435'456;
  json["num_local_experts"] = 65'536;
  json["num_hidden_layers"] = 10000;
  json["head_dim"] = 4096;
  EXPECT_TRUE(mentions(error_of(json.dump(1)), "parameters; no such model exists"));
}

}  // namespace
}  // namespace ljtrain::ljperf
