#include "allocator/settings.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

std::string complaint(std::string_view text) {
  try {
    parse_allocator_settings(text, "--settings");
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Settings, DefaultsAreThoseOfPyTorch) {
  AllocatorSettings settings = parse_allocator_settings("");
  EXPECT_EQ(settings.large_segment, 20 * kMebibyte);
  EXPECT_EQ(settings.max_split, kUnlimited);
  EXPECT_EQ(settings.max_non_split_rounding, 20 * kMebibyte);
  EXPECT_FALSE(settings.expandable_segments);
  EXPECT_EQ(settings.per_process_memory_fraction, 1.0);
  EXPECT_TRUE(settings.without_effect.empty());
}

TEST(Settings, ReadsEveryKey) {
  AllocatorSettings settings = parse_allocator_settings(
      "large_segment_size_mb:12, max_split_size_mb:64,max_non_split_rounding_mb:32,"
      "garbage_collection_threshold:0.5,per_process_memory_fraction:0.75,"
      "expandable_segments:True,throw_on_cudamalloc_oom:True,backend:native,"
      "pinned_use_background_threads:True,");
  EXPECT_EQ(settings.large_segment, 12 * kMebibyte);
  EXPECT_EQ(settings.max_split, 64 * kMebibyte);
  EXPECT_EQ(settings.max_non_split_rounding, 32 * kMebibyte);
  EXPECT_EQ(settings.garbage_collection_threshold, 0.5);
  EXPECT_EQ(settings.per_process_memory_fraction, 0.75);
  EXPECT_TRUE(settings.expandable_segments);
  EXPECT_TRUE(settings.throw_on_cudamalloc_oom);
  EXPECT_TRUE(settings.collects_garbage());
  EXPECT_EQ(settings.without_effect,
            (std::vector<std::string>{"backend", "pinned_use_background_threads"}));
}

// PyTorch's documentation: 1200 lies between 1024 and 2048; with 4 divisions it becomes 1280.
TEST(Settings, RoundsToDivisionsOfPowersOfTwo) {
  AllocatorSettings settings = parse_allocator_settings("roundup_power2_divisions:4");
  EXPECT_EQ(settings.rounded(1200 * kMebibyte), 1280 * kMebibyte);
  EXPECT_EQ(settings.rounded(1024 * kMebibyte), 1024 * kMebibyte);
  EXPECT_EQ(settings.rounded(1), 512);
  EXPECT_EQ(settings.rounded(513), 1024);  // too small for a division of 512 bytes or more
  AllocatorSettings plain = parse_allocator_settings("");
  EXPECT_EQ(plain.rounded(1200 * kMebibyte + 1), 1200 * kMebibyte + 512);
}

TEST(Settings, DivisionsBySizeHoldFromTheirSizeOn) {
  AllocatorSettings settings =
      parse_allocator_settings("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]");
  EXPECT_EQ(settings.divisions_for(32 * kMebibyte), 8);
  EXPECT_EQ(settings.divisions_for(64 * kMebibyte), 8);
  EXPECT_EQ(settings.divisions_for(128 * kMebibyte), 2);
  EXPECT_EQ(settings.divisions_for(300 * kMebibyte), 4);
  EXPECT_EQ(settings.divisions_for(1024 * kMebibyte), 4);
  EXPECT_EQ(settings.divisions_for(2048 * kMebibyte), 1);
  EXPECT_EQ(settings.divisions_for(kLargestRequest), 1);
}

TEST(Settings, NamesTheNearestKey) {
  EXPECT_NE(complaint("max_split_size:64").find("max_split_size_mb"), std::string::npos);
  EXPECT_NE(complaint("expandable_segment:True").find("near: expandable_segments"),
            std::string::npos);
  EXPECT_NE(complaint("qqqqqqqqqq:1").find("there are"), std::string::npos);
}

TEST(Settings, RefusesInOneLine) {
  for (const char* bad : {"max_split_size_mb",
                          "max_split_size_mb:",
                          "max_split_size_mb:abc",
                          "max_split_size_mb:19",
                          "max_split_size_mb=64",
                          "max_split_size_mb:64;expandable_segments:True",
                          "large_segment_size_mb:10",
                          "large_segment_size_mb:9999999999",
                          "max_split_size_mb:30,large_segment_size_mb:64",
                          "expandable_segments:true",
                          "expandable_segments:True:False",
                          "garbage_collection_threshold:1",
                          "garbage_collection_threshold:nan",
                          "garbage_collection_threshold:0.5x",
                          "per_process_memory_fraction:1.5",
                          "roundup_power2_divisions:3",
                          "roundup_power2_divisions:[1:3]",
                          "roundup_power2_divisions:[3:2]",
                          "roundup_power2_divisions:[1:2",
                          "roundup_power2_divisions:[",
                          "backend:cudaMallocAsync",
                          "backend:other",
                          ":",
                          "[",
                          ","}) {
    std::string text = complaint(bad);
    EXPECT_GT(text.size(), 20U) << bad;
    EXPECT_EQ(text.find('\n'), std::string::npos) << bad;
  }
}

TEST(Settings, SaysThatGarbageCollectionNeedsAFraction) {
  AllocatorSettings settings = parse_allocator_settings("garbage_collection_threshold:0.8");
  ASSERT_EQ(settings.without_effect.size(), 1U);
  EXPECT_NE(settings.without_effect[0].find("per_process_memory_fraction"), std::string::npos);
}

}  // namespace
}  // namespace ljtrain::recompute
