#include "base/units.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace ljtrain::base {
namespace {

TEST(Units, ParsesSizes) {
  EXPECT_EQ(parse_bytes("20GiB"), std::uint64_t{20} << 30);
  EXPECT_EQ(parse_bytes("1.5 KiB"), 1536U);
  EXPECT_EQ(parse_bytes("2MB"), 2000000U);
  EXPECT_EQ(parse_bytes("17"), 17U);
  for (const char* bad : {"", "GiB", "-1GiB", "1 parsec", "1e99TiB", "nan", "inf", "1GiB2"}) {
    EXPECT_THROW(parse_bytes(bad), UserError) << bad;
  }
}

TEST(Units, Formats) {
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(12), "12 B");
  EXPECT_EQ(format_count(8030261248.0), "8.03 B");
  EXPECT_EQ(format_seconds(0.00123), "1.2 ms");
  EXPECT_EQ(format_seconds(83), "1 min 23 s");
  EXPECT_EQ(format_seconds(3725), "1 h 02 min");
}

}  // namespace
}  // namespace ljtrain::base
