#include "rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/errors.h"

namespace ljtrain::cnp {
namespace {

AblationOptions of_llama() {
  AblationOptions options;
  options.model = "deepspeed/llama3-8b";
  return options;
}

std::string text(const Row& row) { return fmt::format("{}", fmt::join(row.arguments, " ")); }

TEST(Rows, TheLadderAddsOnePartAtATime) {
  std::vector<Row> rows = plan_rows(of_llama());
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_EQ(text(rows[0]), "");
  EXPECT_EQ(text(rows[1]), "--with accl");
  EXPECT_EQ(text(rows[2]), "--with accl,stack");
  EXPECT_EQ(text(rows[3]), "--with accl,stack,compile");
  EXPECT_EQ(text(rows[4]), "--with accl,stack,compile,recompute");
  for (std::size_t i = 1; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].against, rows[i - 1].id);
    EXPECT_EQ(rows[i].limited, i == 4);
    EXPECT_EQ(rows[i].stock, i < 3);  // CompilerOpt takes the place of stock compilation
  }
}

TEST(Rows, EveryRowHasAnIdOfItsOwn) {
  AblationOptions options = of_llama();
  options.leave_one_out = options.limit_row = true;
  options.environments = {{"base", "/opt/stock"}, {"previous", "/opt/0.1"}};
  std::set<std::string> ids;
  std::vector<Row> rows = plan_rows(options);
  for (const Row& row : rows) {
    EXPECT_TRUE(ids.insert(row.id).second) << row.id;
    EXPECT_TRUE(row.against.empty() || std::ranges::find(rows, row.against, &Row::id) != rows.end())
        << row.against;
  }
  EXPECT_EQ(rows.front().environment, "base");
  EXPECT_EQ(rows.back().environment, "previous");
}

TEST(Rows, TheLimitHasNoCommunicationAndNoRecompute) {
  AblationOptions options = of_llama();
  options.limit_row = true;
  Row limit = plan_rows(options).back();
  EXPECT_EQ(text(limit),
            "--with accl,stack,compile --set gradient_checkpointing=false --collectives none");
  EXPECT_FALSE(limit.same_loss);
  EXPECT_FALSE(limit.limited);
}

TEST(Rows, PeaksAreMeasuredOnlyWhereALimitIsWanted) {
  AblationOptions options = of_llama();
  auto peaks = peak_rows(plan_rows(options));
  ASSERT_TRUE(peaks.has_value());
  EXPECT_EQ(text(peaks->second), text(peaks->first) + " --set gradient_checkpointing=false");
  options.axes = {"zero=1,2"};
  EXPECT_FALSE(peak_rows(plan_rows(options)).has_value());
}

TEST(Rows, TheLimitIsThreeFifthsOfTheWay) {
  EXPECT_EQ(memory_limit(100, 200), 160U);
  EXPECT_EQ(memory_limit(200, 100), 200U);  // noise: nothing to gain
  EXPECT_EQ(memory_limit(7, 7), 7U);
}

TEST(Rows, AxesSpanAGridInTheOrderGiven) {
  AblationOptions options = of_llama();
  options.axes = {"zero=1,3", "weight_decay=0,0.1", "NCCL_ALGO=Ring"};
  std::vector<Row> rows = plan_rows(options);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].name, "zero=1, weight_decay=0.1, NCCL_ALGO=Ring");
  EXPECT_EQ(text(rows[1]), "--zero 1 --set weight_decay=0.1");
  EXPECT_EQ(rows[1].variables.at("NCCL_ALGO"), "Ring");
}

TEST(Rows, AxesThatCannotBeReadAreNamed) {
  for (const char* axis : {"zero", "=1", "zero=", "--zero=1", "a b=1", "zero=1,,2", "zero=2,2"}) {
    AblationOptions options = of_llama();
    options.axes = {axis};
    EXPECT_THROW(plan_rows(options), base::UserError) << axis;
  }
  AblationOptions options = of_llama();
  std::string many = "seq=2";
  for (int i = 3; i < 20; ++i) many += fmt::format(",{}", i);
  options.axes = {many, many, "zero=1"};
  EXPECT_THROW(plan_rows(options), base::UserError);
}

}  // namespace
}  // namespace ljtrain::cnp
