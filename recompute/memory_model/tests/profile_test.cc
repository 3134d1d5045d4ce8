#include "memory_model/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/errors.h"
#include "small_profile.h"

namespace ljtrain::recompute {
namespace {

Profile read(const std::string& text) {
  return read_profile(base::JsonDocument::parse(text, "small.json"));
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = small_profile_text();
  std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// What is wrong with small_profile_text() once `from` is replaced by `to`.
std::string complaint(const std::string& from, const std::string& to) {
  try {
    read(replaced(from, to));
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Profile, ReadsWhatIsThere) {
  Profile profile = small_profile();
  EXPECT_EQ(profile.family, "small");
  EXPECT_EQ(profile.traced_with.at("torch"), "2.13.0");
  const Variant* eager = profile.find(Mode::kEager, Precision::kBf16, false);
  ASSERT_NE(eager, nullptr);
  const Segment& layer = eager->segments.find("layer:dense")->second;
  EXPECT_EQ(layer.tensors.size(), 8);
  EXPECT_EQ(layer.tensors[5].role, Role::kWeightGradient);
  EXPECT_EQ(layer.tensors[5].parameter, 1);
  EXPECT_EQ(layer.forward, (std::vector<int>{2, 3, -3, 4, -1}));
  EXPECT_EQ(layer.uses, (std::vector<std::pair<int, int>>{{0, 0}, {1, 1}}));
  EXPECT_EQ(layer.recompute_events, -1);
  EXPECT_EQ(profile.find(Mode::kCompiled, Precision::kBf16, false), nullptr);
  EXPECT_EQ(profile.find(Mode::kEager, Precision::kBf16, true), nullptr);
}

TEST(Profile, ErrorsNamePlaceAndCure) {
  EXPECT_NE(complaint("\"schema_version\": 1", "\"schema_version\": 2").find("this ljperf reads 1"),
            std::string::npos);
  EXPECT_NE(complaint("\"schema_version\": 1, ", "").find("schema_version"), std::string::npos);
  std::string unknown = complaint("2*vocab*hidden", "2*vocab*width");
  EXPECT_NE(unknown.find("small.json:"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("\"width\""), std::string::npos) << unknown;
  EXPECT_NE(complaint("\"temporary\"", "\"fleeting\"").find("ljperf trace"), std::string::npos);
}

TEST(Profile, RefusesWhatCannotBe) {
  const std::vector<std::pair<std::string, std::string>> faults{
      {"\"eager\"", "\"lazy\""},
      {"\"autocast\"", "\"fp8\""},
      {"\"lora\": false", "\"lora\": 0"},
      {"\"forward\": [1]", "\"forward\": [9]"},
      {"\"forward\": [1]", "\"forward\": [-1]"},
      {"\"forward\": [1]", "\"forward\": [1, 1]"},
      {"\"forward\": [1]", "\"forward\": [18446744073709551615]"},
      {"\"forward\": [1]", "\"forward\": [1.5]"},
      {"\"forward\": [1]", "\"forward\": {}"},
      {"\"backward\": [2, -3]", "\"backward\": [2, -3, -3]"},
      {"\"backward\": [2, -3]", "\"backward\": [0]"},
      {"\"backward\": [2, -3]", "\"other\": []"},
      {"weight_gradient:0", "weight_gradient:7"},
      {"weight_gradient:0", "weight_gradient:-1"},
      {"weight_gradient:0", "weight_gradient:99999999999999999999"},
      {"\"uses\": [[0, 0], [1, 1]]", "\"uses\": [[2, 0]]"},
      {"\"uses\": [[0, 0], [1, 1]]", "\"uses\": [[0, 99]]"},
      {"\"recompute_events\": 3", "\"recompute_events\": 99"},
      {"\"recompute_events\": 3", "\"recompute_events\": -1"},
      {"1*vocab*hidden", "1e200*vocab*hidden"},
      {"\"prologue\"", "\"preface\""},
      {"\"epilogue\"", "\"postscript\""},
      {"\"family\": \"small\"", "\"family\": 3"}};
  for (const auto& [from, to] : faults) {
    EXPECT_NE(complaint(from, to), "") << from << " -> " << to;
  }
  for (const char* text : {"[]", "3", "{}", R"({"schema_version": 1})",
                           R"({"schema_version": 1, "family": "x", "variants": []})"}) {
    EXPECT_THROW(read(text), base::UserError) << text;
  }
}

TEST(Profile, ShippedOnesAreReadAndComplete) {
  std::vector<std::string> families = profile_families();
  ASSERT_FALSE(families.empty());
  EXPECT_TRUE(std::ranges::is_sorted(families));
  for (const std::string& family : families) {
    const Profile* profile = find_profile(family);
    ASSERT_NE(profile, nullptr) << family;
    EXPECT_EQ(profile->family, family);
    EXPECT_EQ(find_profile(family), profile);
    for (Precision precision : {Precision::kBf16, Precision::kAutocast, Precision::kBf16Autocast}) {
      for (Mode mode : {Mode::kEager, Mode::kCheckpointed}) {
        EXPECT_NE(profile->find(mode, precision, false), nullptr) << family;
      }
    }
  }
  EXPECT_EQ(find_profile("unheard_of"), nullptr);
}

// Seeded mutations: only UserError may escape, from reading and from predicting.
TEST(Profile, OnlyUserErrorEscapesFromMutations) {
  constexpr int kIterations = 4000;
  std::mt19937 random(20240601);  // NOLINT(bugprone-random-generator-seed): the same on every run
  const std::string original = base::Json::parse(small_profile_text()).dump();
  const std::vector<std::string> hostile{
      "-1",  "0",         "1e999",           "null", "true", "\"\"", "[]", "{}", "1e18", "99",
      "-99", "\"2*seq\"", "\"9e14*seq*seq\""};
  int taken = 0;
  for (int i = 0; i < kIterations; ++i) {
    std::string text = original;
    if (random() % 2 == 0) {
      text[random() % text.size()] = static_cast<char>(random() % 256);
    } else {
      // Another value between two separators.
      std::size_t from = text.find_first_of(",:[", random() % text.size());
      std::size_t to = from == std::string::npos ? from : text.find_first_of(",]}", from + 1);
      if (to != std::string::npos) {
        text.replace(from + 1, to - from - 1, hostile[random() % hostile.size()]);
      }
    }
    try {
      Profile profile = read(text);
      ModelShape shape = small_shape(2);
      predict(profile, shape, small_setup(Engine::kZero3, 2), Policy::first_recomputed(2, 1));
      ++taken;
    } catch (const base::UserError& error) {
      EXPECT_GT(std::string(error.what()).size(), 10);
    }
  }
  EXPECT_GT(taken, kIterations / 50);
  EXPECT_LT(taken, kIterations - kIterations / 50);
}

}  // namespace
}  // namespace ljtrain::recompute
