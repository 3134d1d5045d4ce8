#include "benchmark/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "benchmark/report.h"
#include "catalogue/catalogue.h"
#include "catalogue/lookup.h"

namespace ljtrain::ljperf {
namespace {

// A plan as make_plan() would build it, without asking the machine or Python.
BenchmarkPlan small_plan() {
  BenchmarkPlan plan;
  plan.options.model = "deepspeed/llama3-8b";
  plan.options.steps = 20;
  plan.engine = "deepspeed";
  plan.model = "llama3-8b";
  plan.ranks = 2;
  plan.placement = {{0}, {1}};
  plan.zero_stage = 3;
  plan.seq = 512;
  plan.precision = "bf16";
  plan.steps_per_run = 25;
  ProxyBudget budget;
  budget.shape.seq = plan.seq;
  budget.shape.ranks = plan.ranks;
  plan.proxy = make_proxy(read_catalogue_model(*find_model("deepspeed/llama3-8b").model),
                          plan.model, parse_scale("1/8"), budget);
  plan.worker = {{"data", {{"kind", "mock"}}},
                 {"training_arguments", base::OrderedJson::object()},
                 {"deepspeed", base::OrderedJson::object()},
                 {"model_config", base::OrderedJson::object()}};
  plan.preflight = base::Json::object();
  return plan;
}

// Feeds a run of `seconds` into a collector, two ranks, a breakdown in fixed shares.
RunCollector run_of(const std::vector<double>& seconds, double gemm_flops) {
  RunCollector collector(2, "cpu");
  for (int rank = 0; rank < 2; ++rank) {
    collector.add(rank,
                  {{"event", "gemm_peak"}, {"flops_per_s", gemm_flops}, {"dtype", "bfloat16"}});
    for (std::size_t step = 0; step < seconds.size(); ++step) {
      double s = seconds[step];
      collector.add(rank, {{"event", "step"},
                           {"step", step},
                           {"seconds", s},
                           {"loss", 9.0 - 0.1 * static_cast<double>(step)},
                           {"tokens", 512},
                           {"instrumented", true},
                           {"data_digest", std::to_string(rank)},
                           {"peak_bytes", 1000 + rank},
                           {"breakdown",
                            {{"data", 0.01 * s},
                             {"forward", 0.3 * s},
                             {"backward", 0.4 * s},
                             {"communication", 0.2 * s},
                             {"optimizer", 0.08 * s},
                             {"other", 0.01 * s}}}});
    }
    collector.add(rank, {{"event", "done"}, {"resident_peak_bytes", 5000}});
  }
  return collector;
}

std::vector<double> steps_with_cold_start(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(1.0, 0.01);
  std::vector<double> seconds{4.0, 1.5};
  while (seconds.size() < 25) {
    seconds.push_back(noise(random));
  }
  return seconds;
}

TEST(Summary, LeavesOutTheColdStartAndAddsUp) {
  BenchmarkPlan plan = small_plan();
  cnp::Record record = start_record(plan);
  add_run(record, plan, run_of(steps_with_cold_start(1), 1e12));
  finish_record(record, plan);
  EXPECT_GE(record.warmup.steps, 2);
  EXPECT_NEAR(*record.step_time_s.median, 1.0, 0.02);
  EXPECT_FALSE(record.step_time_s.ci95.has_value()) << "one run has no interval";
  EXPECT_EQ(record.peak_memory_bytes.max, 1001U);
  EXPECT_EQ(record.loss.size(), 25U);
  ASSERT_TRUE(record.breakdown_s.has_value());
  const cnp::Breakdown& parts = *record.breakdown_s;
  double sum = parts.data + parts.forward + parts.backward + parts.communication_exposed +
               parts.optimizer + parts.other;
  EXPECT_NEAR(sum, *record.step_time_s.median, 0.02 * *record.step_time_s.median);
  EXPECT_NEAR(*record.tokens_per_s, 1024 / *record.step_time_s.median, 1e-9);
  EXPECT_NEAR(*record.mfu, *record.flops_per_token * 512 / *record.step_time_s.median / 1e12, 1e-9);
  EXPECT_GT(*record.hfu, *record.mfu) << "recomputation is work for the hardware";
}

TEST(Summary, RepeatedRunsGiveAnIntervalOverRuns) {
  BenchmarkPlan plan = small_plan();
  cnp::Record record = start_record(plan);
  for (unsigned seed = 0; seed < 5; ++seed) {
    add_run(record, plan, run_of(steps_with_cold_start(seed), 1e12));
  }
  finish_record(record, plan);
  ASSERT_TRUE(record.step_time_s.ci95.has_value());
  EXPECT_LT(record.step_time_s.ci95->low, record.step_time_s.ci95->high);
  EXPECT_EQ(record.runs.size(), 5U);
}

TEST(Summary, PartsAddUpForRunsThatDifferAndForSkewedSteps) {
  BenchmarkPlan plan = small_plan();
  plan.fixed_warmup = 0;
  cnp::Record record = start_record(plan);
  add_run(record, plan, run_of({1.0, 1.0, 1.1, 5.0}, 1e12));
  add_run(record, plan, run_of({2.0, 2.0, 2.1, 9.0}, 1e12));
  finish_record(record, plan);
  const cnp::Breakdown& parts = record.breakdown_s.value();
  EXPECT_NEAR(parts.data + parts.forward + parts.backward + parts.communication_exposed +
                  parts.optimizer + parts.other,
              *record.step_time_s.median, 1e-9);
}

TEST(Summary, AFixedWarmupIsJudgedToo) {
  BenchmarkPlan plan = small_plan();
  plan.fixed_warmup = 1;
  std::vector<double> drift;
  for (int step = 0; step < 25; ++step) {
    drift.push_back(1.0 + 0.05 * step);
  }
  cnp::Record record = start_record(plan);
  add_run(record, plan, run_of(drift, 1e12));
  finish_record(record, plan);
  EXPECT_EQ(record.warmup.steps, 1);
  EXPECT_FALSE(record.warmup.steady);
}

TEST(Summary, SecretsInSettingsAreNotRecorded) {
  BenchmarkPlan plan = small_plan();
  plan.options.command_line = {"ljperf", "--set", "hub_token=abc", "--set=push_key=abc", "--steps"};
  plan.worker["training_arguments"] = {{"hub_token", "abc"}, {"learning_rate", 0.1}};
  std::string text = cnp::to_json(start_record(plan)).dump();
  EXPECT_EQ(text.find("abc"), std::string::npos);
  EXPECT_NE(text.find("learning_rate"), std::string::npos);
}

TEST(Summary, AnMfuAbove100PercentFailsTheRun) {
  BenchmarkPlan plan = small_plan();
  cnp::Record record = start_record(plan);
  add_run(record, plan, run_of(steps_with_cold_start(1), 1e9));
  finish_record(record, plan);
  EXPECT_EQ(record.status, cnp::Status::kFailed);
  EXPECT_FALSE(record.mfu.has_value());
  ASSERT_TRUE(record.failure.has_value());
  EXPECT_NE(record.failure->sentence.find("MFU"), std::string::npos);
}

TEST(Summary, AnInterruptedRunKeepsWhatWasMeasured) {
  BenchmarkPlan plan = small_plan();
  cnp::Record record = start_record(plan);
  record.status = cnp::Status::kInterrupted;
  record.failure = cnp::Failure{};
  add_run(record, plan, run_of({2.0, 1.0, 1.0}, 1e12));
  finish_record(record, plan);
  EXPECT_TRUE(record.step_time_s.median.has_value());
  cnp::Record empty = start_record(plan);
  add_run(empty, plan, RunCollector(2, "cpu"));
  finish_record(empty, plan);
  EXPECT_FALSE(empty.step_time_s.median.has_value());
  EXPECT_NE(result_table(empty).find("none measured"), std::string::npos);
}

TEST(Report, FitsIn100ColumnsAndNamesTheProxyFirstAndLast) {
  BenchmarkPlan plan = small_plan();
  cnp::Record record = start_record(plan);
  for (unsigned seed = 0; seed < 3; ++seed) {
    add_run(record, plan, run_of(steps_with_cold_start(seed), 123456789e6));
  }
  finish_record(record, plan);
  std::istringstream lines(first_line(record) + "\n" + configuration_line(record) + "\n" +
                           result_table(record) + last_line(record));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100U) << line;
    EXPECT_TRUE(line.empty() || line.back() != ' ') << '"' << line << '"';
  }
  EXPECT_NE(first_line(record).find("PROXY 1/8"), std::string::npos);
  EXPECT_NE(last_line(record).find("PROXY 1/8"), std::string::npos);
}

}  // namespace
}  // namespace ljtrain::ljperf
