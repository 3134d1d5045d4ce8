#include "comm/sizes.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

using Sizes = std::vector<std::uint64_t>;

TEST(Sizes, RangesListsAndBoth) {
  EXPECT_EQ(parse_sizes("8:64:x2"), (Sizes{8, 16, 32, 64}));
  EXPECT_EQ(parse_sizes("8:100:x4"), (Sizes{8, 32}));
  EXPECT_EQ(parse_sizes("1MiB:3MiB:1MiB"), (Sizes{1 << 20, 2 << 20, 3 << 20}));
  EXPECT_EQ(parse_sizes("1MiB:3MiB:+1MiB"), parse_sizes("1MiB:3MiB:1MiB"));
  EXPECT_EQ(parse_sizes("8:32"), (Sizes{8, 16, 32}));
  EXPECT_EQ(parse_sizes("1MiB,8,1KiB"), (Sizes{8, 1024, 1 << 20}));
  EXPECT_EQ(parse_sizes("8,8:16:x2,3"), (Sizes{3, 8, 16}));
  EXPECT_EQ(parse_sizes("8:64MiB:x2").size(), 24u);
  EXPECT_EQ(parse_sizes("1:4:x1.5"), (Sizes{1, 2, 3, 4}));  // always forwards
}

TEST(Sizes, WhatIsWrongIsNamed) {
  for (const char* text : {"", "eight", "8:", "8:4", "8:64:x1", "8:64:x0.5", "8:64:xx", "1:2:3:4",
                           "0", "-8", "64GiB", "1:16GiB:1", "8:64:0", ":64"}) {
    EXPECT_THROW(parse_sizes(text), base::UserError) << text;
  }
  try {
    parse_sizes("8,12parsecs");
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_NE(std::string(error.what()).find("12parsecs"), std::string::npos);
  }
}

TEST(Sizes, AreWrittenExactly) {
  EXPECT_EQ(exact_bytes(8), "8 B");
  EXPECT_EQ(exact_bytes(65536), "64 KiB");
  EXPECT_EQ(exact_bytes(65537), "65537 B");
  EXPECT_EQ(exact_bytes(64 << 20), "64 MiB");
}

}  // namespace
}  // namespace ljtrain::ljperf
