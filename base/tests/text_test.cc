#include "base/text.h"

#include <gtest/gtest.h>

namespace ljtrain::base {
namespace {

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("eth0"), "eth0");
  EXPECT_EQ(printable("\x1b[31mred\n"), "\\x1b[31mred\\x0a");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");
  EXPECT_EQ(printable("8 × H100"), "8 × H100");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("a\xe2\x80\xae\x62"), "a\\xe2\\x80\\xaeb");  // right-to-left override
  EXPECT_EQ(printable(std::string(300, 'a'), 10), "aaaaaaaaaa...");
}

TEST(Printable, EscapesWhatDeceives) {
  EXPECT_EQ(printable("a\u202eb"), "a\\xe2\\x80\\xaeb");  // right-to-left override
  EXPECT_EQ(printable("\u2066x\u200b"), "\\xe2\\x81\\xa6x\\xe2\\x80\\x8b");
  EXPECT_EQ(printable("שלום 漢字 é 👍"), "שלום 漢字 é 👍");
}

TEST(Fitted, CutsToColumns) {
  EXPECT_EQ(fitted("llama", 5), "llama");
  EXPECT_EQ(fitted("llama3", 5), "llam…");
  EXPECT_EQ(fitted("漢字漢字", 5), "漢字…");
  EXPECT_EQ(fitted("漢字漢字", 4), "漢…");
  EXPECT_EQ(fitted(std::string(10'000'000, 'm'), 3), "mm…");
  EXPECT_EQ(display_width("漢字"), 4U);
  EXPECT_EQ(display_width("e\u0301"), 1U);
  for (std::size_t columns = 1; columns < 20; ++columns) {
    EXPECT_LE(display_width(fitted("a漢\x1b[1m\u202e\xff字b", columns)), columns);
  }
}

}  // namespace
}  // namespace ljtrain::base
