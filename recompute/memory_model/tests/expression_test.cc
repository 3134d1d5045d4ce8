#include "memory_model/expression.h"

#include <gtest/gtest.h>

#include <string>

#include "base/errors.h"

namespace ljtrain::recompute {
namespace {

TEST(Expression, EvaluatesSumsOfProducts) {
  Sizes sizes{.micro_batch = 2, .seq = 3, .hidden = 5, .heads = 7};
  EXPECT_EQ(Expression::parse("2*micro_batch*seq*hidden").evaluate(sizes), 60);
  EXPECT_EQ(Expression::parse("2*micro_batch*seq*hidden + 4*micro_batch*heads*seq").evaluate(sizes),
            60 + 168);
  EXPECT_EQ(Expression::parse("0.5*seq*seq").evaluate(sizes), 4.5);
  EXPECT_EQ(Expression::parse("16").evaluate(sizes), 16);
  EXPECT_EQ(Expression::parse("3*hidden + -1*seq").evaluate(sizes), 12);
}

TEST(Expression, TextIsCanonicalAndReadsBack) {
  Expression parsed = Expression::parse("4*seq*heads*micro_batch + 0.25*ffn");
  EXPECT_EQ(parsed.text(), "4*micro_batch*seq*heads + 0.25*ffn");
  EXPECT_EQ(Expression::parse(parsed.text()), parsed);
}

TEST(Expression, KnowsItsSymbols) {
  Expression parsed = Expression::parse("4*seq*seq + 1*vocab");
  EXPECT_EQ(parsed.degree(), 2);
  EXPECT_TRUE(parsed.depends_on(1));   // seq
  EXPECT_TRUE(parsed.depends_on(7));   // vocab
  EXPECT_FALSE(parsed.depends_on(2));  // hidden
}

TEST(Expression, EverySymbolHasItsField) {
  for (std::size_t i = 0; i < kSymbols; ++i) {
    Sizes sizes;
    set_size_of_symbol(sizes, i, 3);
    std::string text = "2*" + std::string(symbol_names()[i]);
    EXPECT_EQ(Expression::parse(text).evaluate(sizes), 6) << text;
    EXPECT_EQ(size_of_symbol(sizes, i), 3);
  }
}

TEST(Expression, RefusesWhatItCannotRead) {
  for (const char* text :
       {"", "seq", "2*sequence", "2**seq", "nan", "inf", "1e300", "1e15*seq", "2*seq +", "2 * seq",
        "0x10", "2*seq*seq*seq*seq*seq*seq*seq*seq*seq", "--1", "2*seq+3"}) {
    EXPECT_THROW(Expression::parse(text), base::UserError) << text;
  }
  std::string long_sum = "1";
  for (int i = 0; i < 300; ++i) {
    long_sum += " + 1";
  }
  EXPECT_THROW(Expression::parse(long_sum), base::UserError);
}

TEST(Expression, ErrorsNameTheSymbolAndThoseKnown) {
  try {
    Expression::parse("2*layers");
    FAIL();
  } catch (const base::UserError& error) {
    std::string what = error.what();
    EXPECT_NE(what.find("\"layers\""), std::string::npos) << what;
    EXPECT_NE(what.find("micro_batch, seq, hidden"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace ljtrain::recompute
