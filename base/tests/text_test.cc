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

}  // namespace
}  // namespace ljtrain::base
