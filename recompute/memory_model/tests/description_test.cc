#include "memory_model/description.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "memory_model/prediction.h"

namespace ljtrain::recompute {
namespace {

base::Json shape() {
  return base::Json::parse(R"({"family": "llama", "sizes": {"hidden": 64, "ffn": 128, "heads": 4,
    "kv_heads": 2, "head_dim": 16, "vocab": 100}, "layers": ["dense", "dense"]})");
}

base::Json setup() {
  return base::Json::parse(R"({"engine": "ZeRO-3", "ranks": 2, "micro_batch": 4, "seq": 32,
    "knobs": {"reduce_bucket_size": 1000, "leaf_layers": true, "overlap_comm": false}})");
}

TEST(Description, GivesWhatThePredictorNeeds) {
  ModelShape model = read_shape(shape());
  EXPECT_EQ(model.sizes.kv_heads, 2);
  EXPECT_EQ(model.layers.size(), 2U);
  TrainingSetup training = read_setup(setup());
  EXPECT_EQ(training.engine, Engine::kZero3);
  EXPECT_EQ(training.platform, Platform::kHost);
  EXPECT_EQ(training.backend, Backend::kGloo);
  EXPECT_EQ(training.knobs.reduce_bucket_size, 1000);
  EXPECT_TRUE(training.knobs.leaf_layers);
  EXPECT_EQ(training.knobs.overlap_comm, false);
  EXPECT_GT(
      Predictor(*find_profile("llama"), model, training).peak_bytes(Policy::first_recomputed(2, 1)),
      0);
}

TEST(Description, NamesTheKeyThatIsWrong) {
  auto message = [](const base::Json& json) -> std::string {
    try {
      read_setup(json);
    } catch (const base::UserError& error) {
      return error.what();
    }
    return "";
  };
  base::Json wrong = setup();
  wrong["engine"] = "ZeRO-9";
  EXPECT_NE(message(wrong).find("ZeRO-9"), std::string::npos);
  wrong = setup();
  wrong["seq"] = "long";
  EXPECT_NE(message(wrong).find("seq"), std::string::npos);
  wrong = setup();
  wrong["knobs"]["bucket"] = 1;
  EXPECT_NE(message(wrong).find("bucket"), std::string::npos);
  wrong = setup();
  wrong.erase("ranks");
  EXPECT_NE(message(wrong).find("ranks"), std::string::npos);
}

}  // namespace
}  // namespace ljtrain::recompute
