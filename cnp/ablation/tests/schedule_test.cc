#include "schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "base/errors.h"
#include "evaluate.h"

namespace ljtrain::cnp {
namespace {

Measured run_of(const std::string& row, double step_s, double wall_s = 10) {
  Measured run;
  run.row = row;
  run.completed = step_s > 0;
  run.sentence = run.completed ? "" : "died";
  run.record_id = row;
  run.step_s = step_s;
  run.tokens_per_s = run.completed ? 1000 / step_s : 0;
  run.wall_s = wall_s;
  run.steps = 9;
  return run;
}

std::vector<Row> three_rows() {
  std::vector<Row> rows(3);
  rows[0].id = "base";
  rows[1].id = "one";
  rows[1].against = "base";
  rows[2].id = "two";
  rows[2].against = "one";
  return rows;
}

Ablation warm(double budget_s) {
  Ablation ablation;
  ablation.options.budget_s = budget_s;
  for (const char* row : {"base", "one", "two"}) {
    ablation.warmup.push_back(run_of(row, 0.5, 10));  // 5.5 s of start-up
  }
  return ablation;
}

std::optional<Record> no_record(const std::string&) { return std::nullopt; }

TEST(Schedule, AnOrderHasEachRowOnceAndIsTheSeeds) {
  std::vector<std::size_t> sorted{0, 1, 2, 3, 4};
  std::map<std::size_t, int> first;
  for (std::size_t block = 0; block < 500; ++block) {
    std::vector<std::size_t> order = block_order(7, block, 5);
    EXPECT_EQ(order, block_order(7, block, 5));
    first[order.front()] += 1;
    std::ranges::sort(order);
    EXPECT_EQ(order, sorted);
  }
  for (const auto& [row, times] : first) {
    EXPECT_NEAR(times, 100, 40) << row;  // 4.5 standard deviations
  }
  EXPECT_NE(block_order(7, 0, 20), block_order(8, 0, 20));
}

TEST(Schedule, TheOrderIsTheSameOnEveryMachine) {
  EXPECT_EQ(block_order(1, 0, 5), (std::vector<std::size_t>{2, 3, 1, 0, 4}));
}

TEST(Schedule, StepsFillAnEighthOfTheBudget) {
  std::vector<std::string> rows{"base", "one", "two"};
  // Block: 3 x (5.5 + (3 + n) x 0.5) s; 8 of them in 400 s leave n = 19.3.
  EXPECT_EQ(choose_steps(warm(400), rows), 19);
  EXPECT_EQ(choose_steps(warm(10), rows), kLeastSteps);
  EXPECT_EQ(choose_steps(warm(1e6), rows), kMostSteps);
  Ablation asked = warm(400);
  asked.options.steps = 7;
  EXPECT_EQ(choose_steps(asked, rows), 7);
}

TEST(Schedule, ARunCostsWhatTheNewestOneDid) {
  Ablation ablation = warm(400);
  EXPECT_DOUBLE_EQ(*expected_cost(ablation, "base", 7), 5.5 + 10 * 0.5);
  ablation.blocks.push_back({run_of("base", 0.25, 4.25)});  // 2 s of start-up
  EXPECT_DOUBLE_EQ(*expected_cost(ablation, "base", 7), 2 + 10 * 0.25);
  EXPECT_FALSE(expected_cost(ablation, "unknown", 7).has_value());
}

TEST(Schedule, ARowIsGivenUpAfterTheWarmUpOrTwoFailuresInARow) {
  Ablation ablation = warm(400);
  EXPECT_FALSE(is_given_up(ablation, "one"));
  ablation.blocks.push_back({run_of("one", 0)});
  EXPECT_FALSE(is_given_up(ablation, "one"));
  ablation.blocks.push_back({run_of("one", 0.5)});
  ablation.blocks.push_back({run_of("one", 0)});
  EXPECT_FALSE(is_given_up(ablation, "one"));
  ablation.blocks.push_back({run_of("one", 0)});
  EXPECT_TRUE(is_given_up(ablation, "one"));
  ablation.warmup[2] = run_of("two", 0);
  EXPECT_TRUE(is_given_up(ablation, "two"));
}

TEST(Evaluate, RatiosAreOfRunsOfTheSameBlock) {
  Ablation ablation = warm(400);
  // The machine slows down from block to block: within a block the ratios hold.
  for (double slow : {1.0, 1.5, 2.0}) {
    ablation.blocks.push_back(
        {run_of("two", 0.2 * slow), run_of("base", 0.5 * slow), run_of("one", 0.4 * slow)});
  }
  std::vector<RowResult> results = evaluate(ablation, three_rows(), no_record);
  EXPECT_NEAR(results[1].speedup->ratio, 1.25, 1e-12);
  EXPECT_NEAR(results[2].speedup->ratio, 2.5, 1e-12);
  EXPECT_NEAR(results[2].contribution->ratio, 2, 1e-12);
  EXPECT_NEAR(results[2].contribution->ci95->low, 2, 1e-9);
  EXPECT_EQ(results[2].speedup->observations, 3U);
  EXPECT_DOUBLE_EQ(*results[0].step_s, 0.75);
  EXPECT_FALSE(results[0].speedup.has_value());
  EXPECT_TRUE(is_narrow(results, 1e-6));
}

TEST(Evaluate, AMissingRunLeavesItsBlockOutOfThatRatioOnly) {
  Ablation ablation = warm(400);
  ablation.blocks.push_back({run_of("base", 0.5), run_of("one", 0), run_of("two", 0.25)});
  ablation.blocks.push_back({run_of("base", 0.6), run_of("one", 0.5), run_of("two", 0.25)});
  std::vector<RowResult> results = evaluate(ablation, three_rows(), no_record);
  EXPECT_EQ(results[1].speedup->observations, 1U);
  EXPECT_FALSE(results[1].speedup->ci95.has_value());
  EXPECT_EQ(results[1].failed, 1);
  EXPECT_EQ(results[1].sentence, "died");
  EXPECT_EQ(results[2].speedup->observations, 2U);
  EXPECT_FALSE(is_narrow(results, 1));  // one pair says nothing about its spread
}

TEST(Evaluate, ABlockIsFullWhenEveryRowThatIsStillTriedHasRun) {
  Ablation ablation = warm(400);
  ablation.blocks.push_back({run_of("base", 0.5), run_of("one", 0.5)});
  EXPECT_EQ(full_blocks(ablation, three_rows()), 0U);
  ablation.warmup[2] = run_of("two", 0);
  EXPECT_EQ(full_blocks(ablation, three_rows()), 1U);
}

TEST(State, WhatIsSavedIsLoaded) {
  Ablation ablation = warm(400);
  ablation.folder = std::filesystem::path(testing::TempDir()) / "ablation-state";
  std::filesystem::create_directories(ablation.folder);
  ablation.id = "an id";
  ablation.options.model = "deepspeed/llama3-8b";
  ablation.options.environments = {{"base", "/opt/stock"}};
  ablation.options.axes = {"zero=1,2"};
  ablation.options.more = {"--seq", "64"};
  ablation.options.blocks = 4;
  ablation.limit_bytes = 160;
  ablation.stock_compile = true;
  ablation.steps = 12;
  ablation.spent_s = 33.5;
  ablation.blocks.push_back({run_of("base", 0.5), run_of("one", 0)});
  save(ablation);
  Ablation loaded = load(ablation.folder);
  EXPECT_EQ(loaded.id, ablation.id);
  EXPECT_EQ(loaded.options.model, ablation.options.model);
  EXPECT_EQ(loaded.options.environments, ablation.options.environments);
  EXPECT_EQ(loaded.options.axes, ablation.options.axes);
  EXPECT_EQ(loaded.options.more, ablation.options.more);
  EXPECT_EQ(loaded.options.blocks, 4);
  EXPECT_FALSE(loaded.options.steps.has_value());
  EXPECT_EQ(loaded.limit_bytes, 160U);
  EXPECT_FALSE(loaded.full_bytes.has_value());
  EXPECT_TRUE(loaded.stock_compile);
  EXPECT_EQ(loaded.steps, 12);
  EXPECT_DOUBLE_EQ(loaded.spent_s, 33.5);
  ASSERT_EQ(loaded.blocks.size(), 1U);
  EXPECT_DOUBLE_EQ(loaded.blocks[0][0].tokens_per_s, 2000);
  EXPECT_EQ(loaded.blocks[0][1].sentence, "died");
  std::filesystem::remove_all(ablation.folder);
}

TEST(State, AFileThatIsNoStateIsNamed) {
  std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "no-state";
  std::filesystem::create_directories(folder);
  for (const char* text : {"{", "{}", R"({"schema_version": 99})", R"({"schema_version": 1})"}) {
    base::write_file_atomically(folder / "state.json", text);
    EXPECT_THROW(load(folder), base::UserError) << text;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ljtrain::cnp
