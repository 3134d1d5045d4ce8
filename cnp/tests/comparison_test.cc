#include "cnp/comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "sample_records.h"

namespace ljtrain::cnp {
namespace {

using base::UserError;

Record named(const std::string& id, const std::string& created = "2026-11-30T12:01:02Z") {
  Record record = full_record();
  record.record_id = id;
  record.created = created;
  return record;
}

std::string message(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

bool holds(const std::vector<Difference>& found, const std::string& key, bool unlike) {
  for (const Difference& difference : found) {
    if (difference.key == key) return difference.unlike == unlike;
  }
  return false;
}

TEST(Differences, OfTheTaskAreUnlike) {
  Record a = named("a");
  const std::vector<std::pair<std::string, std::function<void(Record&)>>> changes = {
      {"model", [](Record& r) { r.model = "qwen3-8b"; }},
      {"proxy.rule", [](Record& r) { r.proxy.rule = "another"; }},
      {"proxy.is_proxy", [](Record& r) { r.proxy.is_proxy = false; }},
      {"proxy.scale", [](Record& r) { r.proxy.scale = "1/4"; }},
      {"proxy.layers", [](Record& r) { r.proxy.layers = 4; }},
      {"device", [](Record& r) { r.device = "cuda"; }},
      {"precision", [](Record& r) { r.precision = "fp32"; }},
      {"parameters", [](Record& r) { r.parameters = 1; }},
      {"ranks", [](Record& r) { r.ranks = 4; }},
      {"sequence_length", [](Record& r) { r.sequence_length = 1024; }},
      {"micro_batch", [](Record& r) { r.micro_batch = 2; }},
      {"global_tokens_per_step", [](Record& r) { r.global_tokens_per_step = 2048; }},
      {"data.kind", [](Record& r) { r.data.kind = "mock"; }},
      {"data.file", [](Record& r) { r.data.file = "other.txt"; }},
      {"task", [](Record& r) { r.extra = {{"task", "sft"}}; }},
      {"environment.hardware.cpu_model",
       [](Record& r) { r.environment.hardware.cpu_model = "Another CPU"; }},
      {"environment.hardware.gpus", [](Record& r) { r.environment.hardware.gpus.clear(); }},
      {"configuration.collectives",
       [](Record& r) { r.configuration.extra["collectives"] = "none"; }},
      {"configuration.launcher.name",
       [](Record& r) { r.configuration.extra["launcher"] = {{"name", "torchrun"}}; }},
      {"configuration.launcher.nodes",
       [](Record& r) { r.configuration.extra["launcher"] = {{"nodes", 2}}; }},
  };
  a.extra = {{"task", "pretrain"}};
  for (const auto& [key, change] : changes) {
    Record b = a;
    change(b);
    std::vector<Difference> found = differences(a, b);
    ASSERT_EQ(found.size(), 1U) << key;
    EXPECT_TRUE(holds(found, key, true)) << key;
    EXPECT_NE(unlike_sentence(found).find("`" + key + "` differs"), std::string::npos) << key;
  }
}

TEST(Differences, OfTheWayAreAllowed) {
  Record a = named("a");
  Record b = a;
  b.components.compile = false;
  b.engine = "fsdp";
  b.threads_per_rank = 2;
  b.environment.versions["torch"] = "2.14.0";
  b.configuration.environment["LJTRAIN_ACCL"] = "1";
  b.seed = 7;
  std::vector<Difference> found = differences(a, b);
  EXPECT_EQ(found.size(), 6U);
  EXPECT_EQ(unlike_sentence(found), "");
  EXPECT_TRUE(holds(found, "components.compile", false));
  EXPECT_TRUE(holds(found, "configuration.environment.LJTRAIN_ACCL", false));
  EXPECT_NE(no_repeat(found), nullptr);
}

TEST(Differences, WhatEarlierRecordsLeaveOutIsTheDefault) {
  Record a = named("a");
  a.configuration.extra = {};
  Record b = a;
  b.configuration.extra["collectives"] = "real";
  b.configuration.extra["launcher"] = {{"name", "local"}, {"nodes", 1}};
  EXPECT_TRUE(differences(a, b).empty());
  b.configuration.extra["launcher"]["hosts"] = {"elsewhere"};  // the same task on other hosts
  EXPECT_EQ(unlike_sentence(differences(a, b)), "");
  EXPECT_EQ(no_repeat(differences(a, b)), nullptr);
}

TEST(Differences, ALimitIsNeverComparedWithATraining) {
  Record imported = named("a");
  imported.source = Source{};
  Record limit = imported;
  limit.configuration.extra["collectives"] = "none";
  limit.configuration.extra["launcher"] = {{"name", "slurm"}, {"nodes", 4}};
  // What started an import's ranks is not known.
  EXPECT_EQ(unlike_sentence(differences(imported, limit)),
            "`configuration.collectives` differs (real and none)");
}

TEST(Differences, MeasurementsAreNone) {
  Record a = named("a");
  Record b = named("b", "2026-12-01T12:01:02Z");
  b.step_time_s.median = 9;
  b.runs.clear();
  b.loss = {1};
  b.mfu.reset();
  b.peak_memory_bytes = {};
  b.recompute.measured_peak_bytes.reset();
  EXPECT_TRUE(differences(a, b).empty());
}

TEST(Differences, UnlikeComeFirstAndAreCounted) {
  Record a = named("a");
  Record b = a;
  b.components.accl = false;
  b.model = "x";
  b.ranks = 3;
  b.device = "cuda";
  std::vector<Difference> found = differences(a, b);
  EXPECT_TRUE(found.front().unlike);
  EXPECT_FALSE(found.back().unlike);
  EXPECT_EQ(unlike_sentence(found), "`device` differs (cpu and cuda), and 2 more keys do");
}

TEST(Differences, WhatOneSideDoesNotKnowIsNotUnlike) {
  Record a = named("a");
  Record b = a;
  b.parameters.reset();
  EXPECT_TRUE(holds(differences(a, b), "parameters", false));
  b.zero_stage.reset();
  EXPECT_EQ(unlike_sentence(differences(a, b)), "");
}

TEST(Differences, HostileValuesArePrintable) {
  Record a = named("a");
  Record b = a;
  b.model = "<script>\n\x1b[31m" + std::string(10'000'000, 'x');
  std::vector<Difference> found = differences(a, b);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_LT(found[0].b.size(), 200U);
  EXPECT_EQ(found[0].b.find('\n'), std::string::npos);
  EXPECT_EQ(found[0].b.find('\x1b'), std::string::npos);
}

TEST(MakeSide, SortsAndRefuses) {
  Side side =
      make_side("t", {named("b", "2026-12-02T00:00:00Z"), named("a", "2026-12-01T00:00:00Z")});
  EXPECT_EQ(side.records.front().record_id, "a");
  EXPECT_NE(message([] { make_side("t", {}); }).find("`t` names no record"), std::string::npos);

  std::vector<Record> samples = sample_records();
  EXPECT_NE(message([&] { make_side("t", {samples[2]}); }).find("was interrupted"),
            std::string::npos);
  EXPECT_NE(message([&] { make_side("t", {samples[3]}); }).find("failed: rank 1 was killed"),
            std::string::npos);
  EXPECT_EQ(make_side("t", {samples[3]}, true).records.size(), 1U);
  EXPECT_NE(message([&] { make_side("t", {samples[2]}, true); }).find("holds no run"),
            std::string::npos);

  Record other = named("other");
  other.components.compile = false;
  EXPECT_NE(message([&] { make_side("t", {named("a"), other}); })
                .find("no repeats of one another: `components.compile` is true in a and false in "
                      "other"),
            std::string::npos);
  Record zero = named("zero");
  zero.runs[0].median_s = 0;
  EXPECT_NE(message([&] { make_side("t", {zero}); }).find("took 0 s"), std::string::npos);
  Record no_steps = named("none");
  no_steps.runs[0].median_s.reset();
  EXPECT_NE(message([&] { make_side("t", {no_steps}); }).find("without a step after warm-up"),
            std::string::npos);
}

TEST(LossParity, Verdicts) {
  EXPECT_EQ(loss_parity(named("a"), named("b")).verdict, Parity::kSame);
  Record b = named("b");
  for (auto& run : b.runs) run.steps[1].loss *= 1 + 0.9 * 0x1p-10;
  LossParity within = loss_parity(named("a"), b);
  EXPECT_EQ(within.verdict, Parity::kWithin);
  EXPECT_EQ(within.worst_step, 1U);
  EXPECT_EQ(within.tolerance, 0x1p-10);
  b.runs[1].steps[2].loss *= 1 - 1.1 * 0x1p-10;  // the second run only
  LossParity outside = loss_parity(named("a"), b);
  EXPECT_EQ(outside.verdict, Parity::kOutside);
  EXPECT_EQ(outside.worst_step, 2U);
  EXPECT_LT(outside.mean_difference, outside.largest);
  b.precision = "fp32";
  EXPECT_EQ(loss_parity(named("a"), b).verdict, Parity::kUnknown);
}

TEST(LossParity, NotFiniteOnOneSideIsOutside) {
  Record b = named("b");
  b.runs[0].steps[1].loss = kNotFinite;
  EXPECT_EQ(loss_parity(named("a"), b).verdict, Parity::kOutside);
  EXPECT_EQ(loss_parity(b, named("a")).verdict, Parity::kOutside);
  EXPECT_EQ(loss_parity(b, b).verdict, Parity::kUnknown);
}

TEST(LossParity, UnknownSaysWhy) {
  Record a = named("a");
  auto why = [&](const std::function<void(Record&)>& change) {
    Record b = named("b");
    change(b);
    LossParity found = loss_parity(a, b);
    EXPECT_EQ(found.verdict, Parity::kUnknown);
    return found.sentence;
  };
  EXPECT_EQ(why([](Record& r) { r.seed = 5; }), "the seeds differ");
  const char* unsaid = "a side does not say its seed, or which data it read";
  EXPECT_EQ(why([](Record& r) { r.seed.reset(); }), unsaid);
  EXPECT_EQ(why([](Record& r) { r.data.digests.clear(); }), unsaid);
  EXPECT_NE(why([](Record& r) { r.data.digests = {"ff", "1e"}; }).find("same data"),
            std::string::npos);
  EXPECT_EQ(why([](Record& r) {
              r.runs.clear();
              r.loss.clear();
            }),
            "a side records no loss");
  // More digests of the same data are the same data.
  Record b = named("b");
  b.data.digests = {"0f aa", "1e bb"};
  EXPECT_EQ(loss_parity(a, b).verdict, Parity::kSame);
}

TEST(Memory, PeaksOfRunsAndOfRecords) {
  Side a = make_side("a", {named("a")});
  Record more = named("b");
  for (auto& run : more.runs) {
    for (Step& step : run.steps) {
      for (std::uint64_t& bytes : step.peak_bytes_per_rank) bytes = bytes * 11 / 10;
    }
  }
  MemoryComparison found = compare_memory(a, make_side("b", {more}));
  EXPECT_NEAR(*found.ratio, 1.1, 1e-5);
  EXPECT_NEAR(found.interval->high - found.interval->low, 0, 1e-12);
  more.peak_memory_bytes.max = 2'000'002;
  for (auto& run : more.runs) {
    for (Step& step : run.steps) step.peak_bytes_per_rank.clear();
  }
  EXPECT_NEAR(*compare_memory(a, make_side("b", {more})).ratio, 2, 1e-9);
  more.peak_memory_bytes.max.reset();
  MemoryComparison unknown = compare_memory(a, make_side("b", {more}));
  EXPECT_FALSE(unknown.ratio.has_value());
  EXPECT_TRUE(unknown.a.has_value());
}

TEST(Compare, ThroughputNotStepsWhenForced) {
  Record b = named("b");
  b.global_tokens_per_step = 2 * full_record().global_tokens_per_step;
  Comparison found = compare(make_side("a", {named("a")}), make_side("b", {b}));
  EXPECT_NEAR(found.speed.ratio, 2, 1e-12);
  EXPECT_TRUE(found.proxy);
}

TEST(Compare, StepsWhereTokensAreUnknown) {
  Record b = named("b");
  b.global_tokens_per_step = 0;  // as an import has it
  for (auto& run : b.runs) {
    run.median_s = 3;
    for (Step& step : run.steps) step.seconds = kNotFinite;
  }
  Side of_a = make_side("a", {named("a")});
  Side of_b = make_side("b", {b});
  EXPECT_NEAR(compare(of_a, of_b).speed.ratio, 0.5, 1e-12);
  EXPECT_EQ(tokens_per_step(of_b), std::nullopt);
  EXPECT_THROW(measurements(of_b, true), UserError);
}

TEST(Compare, VerdictByTheInterval) {
  auto with = [](double low, double high) {
    RunRatio ratio;
    ratio.interval = Interval{low, high};
    return verdict(ratio);
  };
  EXPECT_EQ(with(1.01, 1.2), "faster");
  EXPECT_EQ(with(0.8, 0.99), "slower");
  EXPECT_EQ(with(0.99, 1.3), "no difference shown");
  EXPECT_EQ(with(1, 1), "no difference shown");
  EXPECT_EQ(verdict(RunRatio{}), "no interval");
}

}  // namespace
}  // namespace ljtrain::cnp
