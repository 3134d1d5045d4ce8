#include "sweep/grid.h"

#include <gtest/gtest.h>

#include <set>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

TEST(SweepGrid, TheShippedDrawHasEnoughPointsOfEverything) {
  std::int64_t points = 0;
  std::set<std::string> families;
  std::set<std::int64_t> stages;
  std::set<std::int64_t> ranks;
  int adapters = 0;
  for (const SweepJob& job : draw_jobs({})) {
    points += job.layers + 1;
    families.insert(job.json["model"]["model_type"].get<std::string>());
    stages.insert(job.json["deepspeed"]["zero_optimization"]["stage"].get<std::int64_t>());
    ranks.insert(job.json["ranks"].get<std::int64_t>());
    adapters += job.json["lora_rank"] != 0;
  }
  EXPECT_GE(points, 200);
  EXPECT_EQ(families.size(), sweep_families().size());
  EXPECT_EQ(stages, (std::set<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(ranks, (std::set<std::int64_t>{1, 2}));
  EXPECT_GT(adapters, 0);
}

TEST(SweepGrid, TheDrawIsTheSameEverywhere) {
  std::vector<SweepJob> jobs = draw_jobs({});
  EXPECT_EQ(jobs[0].id, "llama-h96-l5-v256-s192-b8-zero0-r2-lora8");
  SweepGrid longer;
  longer.count = 50;
  EXPECT_EQ(draw_jobs(longer)[43].id, jobs.back().id);  // more of them leave the first as they are
}

TEST(SweepGrid, WhatIsDrawnTwiceIsMeasuredOnce) {
  SweepGrid grid;
  grid.families = {"llama"};
  grid.engines = {"ddp"};
  grid.hidden = {64};
  grid.layers = {2};
  grid.vocabulary = grid.seq = {128};
  grid.micro_batch = grid.ranks = {1};
  grid.lora = {0};
  grid.count = 9;
  std::vector<SweepJob> jobs = draw_jobs(grid);
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].json["engine"], "ddp");
  EXPECT_TRUE(jobs[0].json["deepspeed"].is_null());
}

TEST(SweepGrid, BadListsAreNamed) {
  auto error_of = [](auto change) {
    SweepGrid grid;
    change(grid);
    try {
      draw_jobs(grid);
    } catch (const base::UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(error_of([](SweepGrid& g) { g.families = {"lama"}; }).find("lama"), std::string::npos);
  EXPECT_NE(error_of([](SweepGrid& g) { g.engines = {"zero4"}; }).find("zero4"), std::string::npos);
  EXPECT_NE(error_of([](SweepGrid& g) { g.hidden = {100}; }).find("--hidden 100"),
            std::string::npos);
  EXPECT_NE(error_of([](SweepGrid& g) { g.seq = {}; }).find("--seq"), std::string::npos);
  EXPECT_NE(error_of([](SweepGrid& g) { g.ranks = {0}; }).find("--ranks 0"), std::string::npos);
  EXPECT_NE(error_of([](SweepGrid& g) { g.count = 0; }).find("--count"), std::string::npos);
}

}  // namespace
}  // namespace ljtrain::ljperf
