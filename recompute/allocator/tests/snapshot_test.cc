#include "allocator/snapshot.h"

#include <gtest/gtest.h>

#include "allocator/report.h"
#include "base/errors.h"
#include "test_snapshots.h"

namespace ljtrain::recompute {
namespace {

constexpr std::int64_t kMiB = kMebibyte;

MemorySnapshot parse(const base::OrderedJson& json, const SnapshotOptions& options = {}) {
  return parse_memory_snapshot(pickled(json), "s.pickle", options);
}

std::string complaint(const base::OrderedJson& json, const SnapshotOptions& options = {}) {
  try {
    parse(json, options);
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Snapshot, FindsWhatWasThereBefore) {
  MemorySnapshot snapshot = parse(sample_snapshot());
  EXPECT_EQ(snapshot.trace.before, 2);  // the 30 MiB freed in the trace, the 12 MiB never touched
  EXPECT_EQ(snapshot.trace.events[0].bytes, 30 * kMiB);
  EXPECT_EQ(snapshot.trace.events[1].bytes, 12 * kMiB - 100);
  EXPECT_EQ(snapshot.trace.allocations, 4);
  EXPECT_EQ(snapshot.left_out, 0);
}

TEST(Snapshot, AddsUpWhatWasRecorded) {
  RecordedMemory recorded = parse(sample_snapshot()).recorded;
  EXPECT_EQ(recorded.peak_live, (30 + 12 + 4 + 5) * kMiB - 100);
  EXPECT_EQ(recorded.peak_reserved, (20 + 30 + 12) * kMiB);
  EXPECT_EQ(recorded.reserved_at_end, 32 * kMiB);
  EXPECT_EQ(recorded.live_at_end, 16 * kMiB - 100);
  ASSERT_EQ(recorded.failures.size(), 1U);
  EXPECT_EQ(recorded.failures[0].requested, 40 * kMiB);
  EXPECT_EQ(recorded.failures[0].reserved, 32 * kMiB);
  EXPECT_NE(cause_of(recorded.failures[0]).find("too much in use"), std::string::npos);
}

TEST(Snapshot, DelayedFreesKeepTheirDelay) {
  using Kind = TraceEvent::Kind;
  std::vector<Kind> kinds;
  for (const TraceEvent& event : parse(sample_snapshot()).trace.events) {
    kinds.push_back(event.kind);
  }
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kAllocate, Kind::kAllocate, Kind::kAllocate,
                                      Kind::kAllocate, Kind::kFreeLater, Kind::kFree,
                                      Kind::kComplete, Kind::kOutOfMemory}));
}

TEST(Snapshot, OwnersAreTheFramesThatCallPyTorch) {
  MemorySnapshot snapshot = parse(sample_snapshot());
  std::vector<OwnedBytes> owners = owners_at(snapshot.trace, snapshot.recorded.peak_live_event);
  ASSERT_EQ(owners.size(), 1U);
  EXPECT_EQ(snapshot.trace.owners[owners[0].owner], "me/model.py:7 block");
  EXPECT_EQ(owners[0].bytes, snapshot.recorded.peak_live);
}

TEST(Snapshot, OwnersByCategory) {
  base::OrderedJson json = sample_snapshot();
  for (auto& event : json["device_traces"][0]) {
    event["category"] = "activation";
  }
  MemorySnapshot snapshot = parse(json, {.owner = OwnerKind::kCategory});
  std::vector<OwnedBytes> owners = owners_at(snapshot.trace, snapshot.recorded.peak_live_event);
  EXPECT_EQ(snapshot.trace.owners[owners[0].owner], "activation");
  EXPECT_EQ(snapshot.trace.owners[owners[1].owner], "unknown");  // blocks carry no category
}

TEST(Snapshot, UnknownKeysAndActionsOfLaterVersionsAreFine) {
  base::OrderedJson json = sample_snapshot();
  json["later"] = {{"x", 1}};
  json["segments"][0]["registration_counter"] = -1;
  json["device_traces"][0].push_back({{"action", "later_action"}});
  EXPECT_EQ(parse(json).trace.allocations, 4);
}

TEST(Snapshot, SettingsOfALaterVersionAreNamed) {
  base::OrderedJson json = sample_snapshot();
  json["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "later_setting:1";
  MemorySnapshot snapshot = parse(json);
  EXPECT_NE(snapshot.settings_problem.find("later_setting"), std::string::npos);
  EXPECT_EQ(snapshot.settings, "");
}

TEST(Snapshot, WithoutRecordingTheBlocksAreTheState) {
  base::OrderedJson json = sample_snapshot();
  json["device_traces"] = {base::OrderedJson::array(), base::OrderedJson::array()};
  MemorySnapshot snapshot = parse(json);
  EXPECT_EQ(snapshot.recorded.peak_live, 16 * kMiB - 100);
  EXPECT_EQ(snapshot.recorded.peak_reserved, 32 * kMiB);
}

TEST(Snapshot, ChoosesTheDeviceWithEvents) {
  base::OrderedJson json = sample_snapshot();
  json["device_traces"].insert(json["device_traces"].begin(), base::OrderedJson::array());
  EXPECT_EQ(parse(json).device, 1);
  EXPECT_NE(complaint(json, {.device = 5}).find("no device 5"), std::string::npos);
  EXPECT_EQ(parse(json, {.device = 0}).recorded.reserved_at_end, 32 * kMiB);
}

TEST(Snapshot, ContradictionsAreLeftOutAndCounted) {
  base::OrderedJson json = sample_snapshot();
  auto& trace = json["device_traces"][0];
  trace.insert(trace.begin() + 2, trace[1]);  // allocated twice at one address
  EXPECT_EQ(parse(json).left_out, 1);
}

TEST(Snapshot, RefusesWithThePlace) {
  auto without = [](auto edit) {
    base::OrderedJson json = sample_snapshot();
    edit(json);
    return complaint(json);
  };
  using Json = base::OrderedJson;
  EXPECT_NE(without([](Json& j) {
              j["device_traces"][0][1]["size"] = "x";
            }).find("device_traces[0][1].size: is a text where a whole number"),
            std::string::npos);
  EXPECT_NE(without([](Json& j) { j["device_traces"][0][1]["size"] = -5; }).find("[1].size"),
            std::string::npos);
  EXPECT_NE(without([](Json& j) { j.erase("segments"); }).find("segments: is missing"),
            std::string::npos);
  EXPECT_NE(without([](Json& j) { j["segments"][0].erase("address"); }).find("segments[0].address"),
            std::string::npos);
  EXPECT_NE(without([](Json& j) {
              j["segments"][0]["blocks"][0]["requested_size"] = INT64_MAX;
            }).find("requested_size"),
            std::string::npos);
  EXPECT_NE(without([](Json& j) { j = Json::array(); }).find("a list"), std::string::npos);
  EXPECT_NE(without([](Json& j) {
              j["segments"] = Json::array();
              j["device_traces"] = {Json::array()};
            }).find("_record_memory_history"),
            std::string::npos);
  EXPECT_NE(without([](Json& j) {
              for (auto& event : j["device_traces"][0]) {
                event["size"] = kLargestRequest;
              }
            }).find("more memory than a device"),
            std::string::npos);
}

// A small file in which one list stands a million times must not be read a million times.
TEST(Snapshot, RepeatedListsAreRefused) {
  std::string segment =
      "}(\x8c\x06"
      "device"
      "K" +
      std::string(1, '\0') +
      "\x8c\x0a"
      "total_size"
      "K\x08"
      "\x8c\x07"
      "address"
      "K\x08"
      "\x8c\x06"
      "blocks"
      "](";
  for (int i = 0; i < 1000; ++i) {
    segment +=
        "}(\x8c\x04"
        "size"
        "K\x01\x8c\x05"
        "state"
        "\x8c\x01"
        "iu";
  }
  segment += "eu\x94";
  std::string bytes =
      "\x80\x04}(\x8c\x0d"
      "device_traces"
      "]\x8c\x08"
      "segments"
      "](" +
      segment;
  for (int i = 0; i < 50'000; ++i) {
    bytes += std::string("h") + '\0';
  }
  bytes += "eu.";
  try {
    parse_memory_snapshot(bytes, "s");
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_NE(std::string(error.what()).find("repeats"), std::string::npos) << error.what();
  }
}

TEST(Trace, PlaysAHandMadeTimeline) {
  Trace trace;
  std::int32_t weights = trace.add_owner("weights");
  std::int32_t activations = trace.add_owner("activations");
  trace.allocate(100 * kMiB, weights);
  std::int64_t first = trace.allocate(30 * kMiB, activations);
  std::int64_t second = trace.allocate(30 * kMiB, activations);
  trace.free(second);
  trace.free(first);
  Replay result = replay(trace, parse_allocator_settings(""), {}, 3);
  EXPECT_EQ(result.stats.peak_reserved, 160 * kMiB);
  EXPECT_EQ(result.stats.requested, 100 * kMiB);
  EXPECT_EQ(result.at_peak_requested.event, 2);
  EXPECT_EQ(result.samples.size(), 3U);
  EXPECT_EQ(owners_at(trace, 2)[0].owner, weights);
  EXPECT_EQ(owners_at(trace, 2)[1].bytes, 60 * kMiB);
  Replay limited = replay(trace, parse_allocator_settings(""), {.total = 140 * kMiB});
  EXPECT_EQ(limited.failed_event, 2);
  EXPECT_EQ(limited.failure->limit, 140 * kMiB);
}

TEST(Report, SaysThatItIsUnverified) {
  AnalysisOptions options;
  MemoryReport report = analyse(parse(sample_snapshot()), "s.pickle", options);
  EXPECT_TRUE(report.limit_from_trace);
  EXPECT_EQ(report.limit, 42 * kMiB);
  EXPECT_NE(report_text(report, 10).find(kUnverified), std::string::npos);
  base::OrderedJson json = report_json(report, 10);
  EXPECT_EQ(json.at("schema_version"), 1);
  EXPECT_EQ(json.at("simulation"), kUnverified);
  EXPECT_EQ(json.at("recorded").at("peak_live_bytes"), 51 * kMiB - 100);
  options.settings = {"expandable_segment:True"};
  EXPECT_THROW(analyse(parse(sample_snapshot()), "s.pickle", options), base::UserError);
}

}  // namespace
}  // namespace ljtrain::recompute
