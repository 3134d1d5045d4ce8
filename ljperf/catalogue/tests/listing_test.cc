#include "catalogue/listing.h"

#include <gtest/gtest.h>

#include "test_configs.h"

namespace ljtrain::ljperf {
namespace {

TEST(Listing, HasTheKeysThatOthersRead) {
  base::OrderedJson listing = list_models(parse_scale("full"), 8192);
  EXPECT_EQ(listing["schema_version"], 1);
  EXPECT_EQ(listing["models"].size(), catalogue_models().size());
  for (const base::OrderedJson& model : listing["models"]) {
    for (const char* key :
         {"id", "title", "engines", "architecture", "task", "parameters", "active_parameters",
          "embedding_parameters", "layers", "hidden_size", "flops_per_token", "proxy", "config"}) {
      EXPECT_TRUE(model.contains(key)) << key;
    }
    EXPECT_EQ(model["seq"], model["id"] == "bert-large" ? 512 : 8192);
    EXPECT_EQ(model["flops_per_token"].size(), 4);
    EXPECT_EQ(model["proxy"]["is_proxy"], false);
    EXPECT_EQ(model["engines"], (base::OrderedJson{"deepspeed", "fsdp", "ddp"}));
  }
}

TEST(Listing, ScaleThatAModelDoesNotAllowBecomesTheNextOneItDoes) {
  base::OrderedJson listing = list_models(parse_scale("1/8"), 512);
  for (const base::OrderedJson& model : listing["models"]) {
    EXPECT_EQ(model["proxy"]["scale"], model["id"] == "qwen3-30b-a3b" ? "1/4" : "1/8");
  }
  EXPECT_THROW(list_models(parse_scale("auto"), 512), base::UserError);
}

TEST(Listing, OneFile) {
  auto document = base::JsonDocument::parse(catalogue_json("llama3-8b").dump(), "my/config.json");
  base::OrderedJson model = list_config(document, parse_scale("1/8"), 512)["models"][0];
  EXPECT_EQ(model["id"], "my/config.json");
  EXPECT_EQ(model["parameters"], 43'688'448);
  EXPECT_THROW(list_config(document, parse_scale("1/7"), 512), base::UserError);
}

}  // namespace
}  // namespace ljtrain::ljperf
