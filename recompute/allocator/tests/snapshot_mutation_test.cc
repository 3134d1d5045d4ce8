// Seeded mutations of a snapshot through reader, simulator and report: only UserError may escape.
// fuzz/snapshot_fuzz.cc is the open-ended version of this test.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "allocator/report.h"
#include "base/errors.h"
#include "test_snapshots.h"

namespace ljtrain::recompute {
namespace {

constexpr int kIterations = 6'000;
constexpr std::uint32_t kSeed = 20261130;

class Mutator {
 public:
  std::string mutate(const base::OrderedJson& json) {
    std::string bytes;
    if (below(3) == 0) {
      bytes = pickled(json, below(2) == 0 ? 2 : 4);
    } else {
      base::OrderedJson changed = json;
      for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
        change(changed);
      }
      return pickled(changed, below(2) == 0 ? 2 : 4);
    }
    if (below(4) == 0) {
      return bytes.substr(0, below(bytes.size()));
    }
    for (std::size_t flips = 1 + below(3); flips > 0; --flips) {
      bytes[below(bytes.size())] = static_cast<char>(below(256));
    }
    return bytes;
  }

 private:
  std::size_t below(std::size_t count) { return random_() % count; }

  // Walks down to a random value and replaces, repeats or removes it.
  void change(base::OrderedJson& json) {
    static const std::vector<base::OrderedJson> kHostile{0,
                                                         1,
                                                         -1,
                                                         INT64_MAX,
                                                         INT64_MIN,
                                                         kLargestRequest,
                                                         kLargestRequest + 1,
                                                         nullptr,
                                                         true,
                                                         1.5,
                                                         1e300,
                                                         "",
                                                         "alloc",
                                                         "oom",
                                                         "free_completed",
                                                         "segment_alloc",
                                                         "active_allocated",
                                                         base::OrderedJson::array(),
                                                         base::OrderedJson::object(),
                                                         base::OrderedJson::array({1, 2}),
                                                         512,
                                                         20971520,
                                                         "expandable_segments:True",
                                                         "max_split_size_mb:20"};
    base::OrderedJson* at = &json;
    while (at->is_structured() && !at->empty() && below(8) != 0) {
      auto child = std::next(at->begin(), static_cast<std::ptrdiff_t>(below(at->size())));
      if (at->is_array() && below(12) == 0) {
        base::OrderedJson copy = *child;
        at->insert(at->begin() + static_cast<std::ptrdiff_t>(below(at->size())), copy);
        return;
      }
      if (below(16) == 0) {
        at->erase(child);
        return;
      }
      at = &*child;
    }
    *at = kHostile[below(kHostile.size())];
  }

  std::mt19937 random_{kSeed};  // NOLINT(bugprone-random-generator-seed): the same on every run
};

bool accepted(std::string bytes) {
  try {
    MemoryReport report = analyse(parse_memory_snapshot(std::move(bytes), "fuzzed"), "fuzzed", {});
    EXPECT_FALSE(report_text(report, 5).empty());
    report_json(report, 5).dump();
    return true;
  } catch (const base::UserError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return false;
  }
}

TEST(SnapshotMutation, OnlyUserErrorEscapes) {
  base::OrderedJson json = sample_snapshot();
  Mutator mutator;
  int taken = 0;
  for (int i = 0; i < kIterations; ++i) {
    std::string bytes = mutator.mutate(json);
    SCOPED_TRACE(i);
    ASSERT_NO_THROW(taken += accepted(bytes) ? 1 : 0);
  }
  // Both sides are reached: what is played, and what is refused.
  EXPECT_GT(taken, kIterations / 20);
  EXPECT_LT(taken, kIterations - kIterations / 20);
}

}  // namespace
}  // namespace ljtrain::recompute
