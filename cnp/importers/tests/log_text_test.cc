#include "log_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/errors.h"
#include "importers/import.h"

namespace ljtrain::cnp {
namespace {

TEST(LogText, ReadsNumbersAsTheyArePrinted) {
  EXPECT_EQ(leading_number("  42,332  tflops", true), 42332);
  EXPECT_EQ(leading_number("6.258318E+00 |"), 6.258318);
  EXPECT_EQ(leading_number("52.53GiB(66%)"), 52.53);
  EXPECT_TRUE(std::isnan(*leading_number("nan")));
  EXPECT_EQ(leading_number("1e400"), std::nullopt);
  EXPECT_EQ(leading_number(""), std::nullopt);
  EXPECT_EQ(leading_number("x"), std::nullopt);
  EXPECT_EQ(number_after("lm loss: 3 | loss: 4", "loss:"), 3);
  EXPECT_EQ(number_after("total_loss: 3 loss: 4", "loss:"), 4);
}

TEST(LogText, CountsAreWholeAndHeldExactly) {
  EXPECT_EQ(as_count(3.0), 3);
  EXPECT_EQ(as_count(3.5), std::nullopt);
  EXPECT_EQ(as_count(0.0, 1), std::nullopt);
  EXPECT_EQ(as_count(-1.0), std::nullopt);
  EXPECT_EQ(as_count(1e18), std::nullopt);
  EXPECT_EQ(as_count(std::nan("")), std::nullopt);
  EXPECT_EQ(as_count(9007199254740991.0), 9007199254740991);
}

TEST(LogText, LinesComeWithoutColoursAndProgressBars) {
  std::vector<std::string> lines;
  for_each_line(
      std::string("\x1b[31mred\x1b[0m\r\n10%\r20%\rlast\n") + std::string(70'000, 'x') + "\nend",
      [&lines](std::string_view line) { lines.emplace_back(line); });
  EXPECT_EQ(lines, (std::vector<std::string>{"red", "last", "end"}));
}

TEST(Import, DigestIsFnv1a) {
  EXPECT_EQ(digest_of(""), "cbf29ce484222325");
  EXPECT_EQ(digest_of("a"), "af63dc4c8601ec8c");
  EXPECT_EQ(digest_of("foobar"), "85944171f73967e8");
}

TEST(Import, NamesTheFileThatHoldsNothing) {
  ImportSource source{.text = "nothing", .name = "run.log", .now = {}};
  try {
    import_document(source, "auto", {});
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("run.log: is no result"));
  }
}

}  // namespace
}  // namespace ljtrain::cnp
