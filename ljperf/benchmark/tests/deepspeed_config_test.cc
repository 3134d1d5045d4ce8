#include "deepspeed_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

class DeepSpeedConfigTest : public ::testing::Test {
 protected:
  ~DeepSpeedConfigTest() override { std::filesystem::remove(file_); }

  DeepSpeedConfig make(const std::string& content, std::optional<int> zero = std::nullopt,
                       std::optional<int> micro_batch = std::nullopt,
                       const Settings& settings = {}) {
    std::ofstream(file_) << content;
    return make_deepspeed_config(file_, zero, micro_batch, settings);
  }
  std::string complaint(const std::string& content, std::optional<int> micro_batch = std::nullopt) {
    try {
      make(content, std::nullopt, micro_batch);
    } catch (const base::UserError& error) {
      return std::string(error.what()).substr(file_.string().size());
    }
    return "";
  }

  std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / fmt::format("ds_test.{}.json", ::getpid());
};

TEST_F(DeepSpeedConfigTest, DefaultsAreZero3WithTheTrainersOwnValues) {
  DeepSpeedConfig config = make_deepspeed_config({}, std::nullopt, std::nullopt, {});
  EXPECT_EQ(config.zero_stage, 3);
  EXPECT_EQ(config.json["zero_optimization"]["stage"], 3);
  EXPECT_EQ(config.json["bf16"]["enabled"], "auto");
}

TEST_F(DeepSpeedConfigTest, TheFileBeatsTheDefaultsAndTheOptionBeatsTheFile) {
  std::string file = R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": 5}, "x": 1})";
  DeepSpeedConfig config = make(file);
  EXPECT_EQ(config.zero_stage, 2);
  EXPECT_EQ(config.json["zero_optimization"]["reduce_bucket_size"], 5);
  EXPECT_EQ(config.json["x"], 1);
  EXPECT_FALSE(config.json["zero_optimization"].contains("stage3_prefetch_bucket_size"))
      << "a user's section is the user's own";
  EXPECT_EQ(make(file, 1).json["zero_optimization"]["stage"], 1);
}

TEST_F(DeepSpeedConfigTest, AFileWithoutAStageMeansWhatDeepSpeedMeans) {
  EXPECT_EQ(make("{}").zero_stage, 3) << "the defaults of ljperf stay where the file says nothing";
  EXPECT_EQ(make(R"({"zero_optimization": {}})").zero_stage, 0);
}

TEST_F(DeepSpeedConfigTest, WhatTheFileDecidesTheArgumentsFollow) {
  DeepSpeedConfig config = make(
      R"({"gradient_accumulation_steps": 4, "gradient_clipping": 0.5, "fp16": {"enabled": true},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}})");
  EXPECT_EQ(config.decided, (Settings{{"gradient_accumulation_steps", 4},
                                      {"max_grad_norm", 0.5},
                                      {"fp16", true},
                                      {"learning_rate", 1e-4},
                                      {"adam_beta1", 0.9},
                                      {"adam_beta2", 0.95}}));
  EXPECT_EQ(precision_of(merge_settings(config.decided, {})), "fp16");
  EXPECT_EQ(merge_settings(config.decided, {}).at("bf16"), false);
}

TEST_F(DeepSpeedConfigTest, SetBeatsTheFile) {
  DeepSpeedConfig config =
      make(R"({"gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
               "optimizer": {"params": {"betas": [0.9, 0.95]}}})",
           std::nullopt, std::nullopt,
           {{"gradient_accumulation_steps", 2}, {"adam_beta2", 0.99}, {"bf16", false}});
  EXPECT_EQ(config.json["gradient_accumulation_steps"], "auto");
  EXPECT_EQ(config.json["optimizer"]["params"]["betas"], "auto");
  EXPECT_EQ(config.decided.at("max_grad_norm"), 0.5);
  EXPECT_FALSE(config.decided.contains("gradient_accumulation_steps"));
  EXPECT_EQ(precision_of(merge_settings(config.decided, {{"bf16", false}})), "fp32");
}

TEST(Settings, ValuesAreJsonWhereTheyAreJson) {
  EXPECT_EQ(
      parse_settings({"a=1", "b=1e-3", "c=True", "d=text", "e=", "f={\"x\": [1]}"}),
      (Settings{
          {"a", 1}, {"b", 1e-3}, {"c", true}, {"d", "text"}, {"e", ""}, {"f", {{"x", {1}}}}}));
  EXPECT_THROW(parse_settings({"a=1", "a=2"}), base::UserError);
}

TEST_F(DeepSpeedConfigTest, MistakesAreNamedWithLineAndKey) {
  EXPECT_EQ(complaint("{\n\"zero_optimization\": {\n \"stage\": 4}}"),
            ":3: key `zero_optimization.stage`: 4 is no ZeRO stage; use 0, 1, 2 or 3");
  EXPECT_EQ(complaint("{\n\"zero_optimization\": {\n \"stage\": \"3\"}}"),
            ":3: key `zero_optimization.stage`: \"3\" is no ZeRO stage; use 0, 1, 2 or 3");
  EXPECT_EQ(complaint("{\"zero_optimization\": 3}").find(":1: key `zero_optimization`: must be"),
            0U);
  EXPECT_EQ(complaint("[]"), ": must hold a JSON object, as DeepSpeed's configuration does");
  EXPECT_EQ(complaint("{\"bf16\": true}"), ":1: key `bf16`: must be an object");
  EXPECT_EQ(complaint("{,}").find(":1:2: not valid JSON"), 0U);
  EXPECT_EQ(complaint("{\"train_micro_batch_size_per_gpu\": 0}")
                .find(":1: key `train_micro_batch_size_per_gpu`: 0 must be"),
            0U);
  EXPECT_EQ(complaint("{\"train_micro_batch_size_per_gpu\": 2}", 3),
            ":1: key `train_micro_batch_size_per_gpu`: 2 contradicts --micro-batch 3; leave one of "
            "them out");
}

}  // namespace
}  // namespace ljtrain::ljperf
