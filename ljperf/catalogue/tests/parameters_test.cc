#include "catalogue/parameters.h"

#include <gtest/gtest.h>

#include <numeric>

#include "test_configs.h"

namespace ljtrain::ljperf {
namespace {

// Published totals; tests/test_catalogue_reference.py compares all families with transformers.
TEST(Parameters, OfTheCatalogue) {
  EXPECT_EQ(count_parameters(catalogue_config("llama3-8b")).total, 8'030'261'248);
  EXPECT_EQ(count_parameters(catalogue_config("llama3-70b")).total, 70'553'706'496);
  EXPECT_EQ(count_parameters(catalogue_config("llama3.1-405b")).total, 405'853'388'800);
  EXPECT_EQ(count_parameters(catalogue_config("mistral-7b")).total, 7'241'732'096);
  EXPECT_EQ(count_parameters(catalogue_config("gemma-7b")).total, 8'537'680'896);
  EXPECT_EQ(count_parameters(catalogue_config("qwen3-8b")).total, 8'190'735'360);
  EXPECT_EQ(count_parameters(catalogue_config("mixtral-8x7b")).total, 46'702'792'704);
  EXPECT_EQ(count_parameters(catalogue_config("qwen3-30b-a3b")).total, 30'532'122'624);
  EXPECT_EQ(count_parameters(catalogue_config("bert-large")).total, 335'174'458);
}

TEST(Parameters, OnlyTopKExpertsAreActive) {
  ParameterCounts mixtral = count_parameters(catalogue_config("mixtral-8x7b"));
  EXPECT_EQ(mixtral.active, 12'879'925'248);  // "12.9B active", arXiv:2401.04088
  EXPECT_EQ(count_parameters(catalogue_config("qwen3-30b-a3b")).active, 3'353'032'704);
  ParameterCounts llama = count_parameters(catalogue_config("llama3-8b"));
  EXPECT_EQ(llama.active, llama.total);
  EXPECT_EQ(llama.active_layers, llama.layers);
}

TEST(Parameters, PartsAddUp) {
  for (const CatalogueModel& model : catalogue_models()) {
    ModelConfig config = read_catalogue_model(model);
    ParameterCounts counts = count_parameters(config);
    std::int64_t norm = (config.norm_bias ? 2 : 1) * config.hidden_size;
    EXPECT_EQ(std::accumulate(counts.layers.begin(), counts.layers.end(),
                              counts.embedding + counts.head + norm),
              counts.total)
        << model.id;
    EXPECT_EQ(counts.trainable, counts.total);
  }
}

TEST(Parameters, TiedHeadIsCountedOnce) {
  base::Json json = catalogue_json("llama3-8b");
  json["tie_word_embeddings"] = true;
  EXPECT_EQ(count_parameters(read_json(json)).total, 8'030'261'248 - 128'256LL * 4096);
  EXPECT_EQ(count_parameters(read_json(json)).head, 0);
}

}  // namespace
}  // namespace ljtrain::ljperf
