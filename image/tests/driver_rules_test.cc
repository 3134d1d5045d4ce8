#include "image/driver_rules.h"

#include <gtest/gtest.h>

namespace ljtrain::image {
namespace {

Version version(const char* text) { return parse_version(text).value(); }

struct Case {
  const char* driver;
  const char* cuda;
  GpuClass gpu;
  bool compat;
  Verdict verdict;
  const char* rule;
};

constexpr auto kDataCenter = GpuClass::kDataCenter;
constexpr auto kConsumer = GpuClass::kConsumer;
constexpr auto kWorkstation = GpuClass::kWorkstation;
constexpr auto kOk = Verdict::kOk;
constexpr auto kWarning = Verdict::kWarning;
constexpr auto kFailure = Verdict::kFailure;

class DriverRules : public testing::TestWithParam<Case> {};

TEST_P(DriverRules, AreNvidias) {
  const Case& c = GetParam();
  DriverAnswer answer = judge_driver({version(c.driver), version(c.cuda), c.gpu, c.compat});
  EXPECT_EQ(answer.verdict, c.verdict) << c.driver << " " << c.cuda << ": " << answer.why;
  EXPECT_EQ(answer.rule, c.rule) << c.driver << " " << c.cuda << ": " << answer.why;
  EXPECT_EQ(answer.fix.empty(), answer.verdict == kOk);
}

INSTANTIATE_TEST_SUITE_P(
    Table, DriverRules,
    testing::Values(
        // The toolkit's own driver, its update, and one before it.
        Case{"570.26", "12.8", kDataCenter, false, kOk, "toolkit"},
        Case{"570.124.06", "12.8.1", kDataCenter, false, kOk, "toolkit"},
        Case{"580.65.06", "12.8", kConsumer, false, kOk, "toolkit"},
        Case{"570.25", "12.8", kConsumer, false, kOk, "minor"},
        // Minor version compatibility to the last digit, as whole numbers.
        Case{"525.60.13", "12.8", kConsumer, false, kOk, "minor"},
        Case{"525.60.9", "12.8", kConsumer, false, kFailure, "none"},
        Case{"525.105.17", "12.8", kConsumer, false, kOk, "minor"},
        Case{"450.80.02", "11.8", kConsumer, false, kOk, "minor"},
        Case{"450.79", "11.8", kConsumer, false, kFailure, "none"},
        Case{"580.65.06", "13.2", kConsumer, false, kOk, "minor"},
        Case{"580.50", "13.0", kConsumer, false, kWarning, "minor"},
        // Forward compatibility: listed branch, package in use, data-center GPU; all three.
        Case{"570.124.06", "13.0", kDataCenter, true, kOk, "forward"},
        Case{"535.104.05", "13.0", kDataCenter, true, kOk, "forward"},
        Case{"570.124.06", "13.0", kDataCenter, false, kFailure, "none"},
        Case{"570.124.06", "13.0", kConsumer, true, kFailure, "none"},
        Case{"570.124.06", "13.0", kWorkstation, true, kWarning, "forward"},
        Case{"575.57.08", "13.0", kDataCenter, true, kFailure, "none"},  // no target branch
        Case{"550.54.15", "13.0", kDataCenter, true, kFailure, "none"},  // end of life
        Case{"470.82.01", "12.8", kDataCenter, true, kFailure, "none"},
        // What the table does not hold.
        Case{"580.65.06", "13.9", kDataCenter, false, kOk, "minor"},
        Case{"570.26", "13.9", kDataCenter, true, kFailure, "none"},
        Case{"600.1", "14.0", kDataCenter, false, kWarning, "none"}));

struct PolicyCase {
  const char* driver;
  GpuClass gpu;
  bool compat;
  Verdict verdict;
};

// The release's 575 is a policy above CUDA 12.8's rule: missing it warns; what CUDA itself cannot
// run still fails.
TEST(DriverPolicy, AboveTheRuleIsAWarning) {
  Release release = find_release("25.07");
  for (const PolicyCase& c : {
           PolicyCase{"575.57.08", kDataCenter, false, kOk},
           PolicyCase{"580.65.06", kConsumer, false, kOk},
           PolicyCase{"570.124.06", kDataCenter, false, kWarning},
           PolicyCase{"545.23.06", kDataCenter, false, kWarning},
           PolicyCase{"535.86.09", kDataCenter, false, kWarning},
           PolicyCase{"525.85.12", kDataCenter, false, kWarning},
           PolicyCase{"525.60.13", kConsumer, false, kWarning},
           PolicyCase{"525.53", kConsumer, false, kFailure},
           PolicyCase{"520.61.05", kDataCenter, false, kFailure},
           PolicyCase{"470.82.01", kDataCenter, false, kFailure},
           PolicyCase{"470.82.01", kDataCenter, true, kWarning},  // the release lists R470
           PolicyCase{"470.42.01", kDataCenter, true, kFailure},  // from 470.57 on
           PolicyCase{"450.80.02", kDataCenter, true, kFailure},
       }) {
    DriverAnswer answer =
        judge_driver({version(c.driver), *release.cuda, c.gpu, c.compat}, *release.driver);
    EXPECT_EQ(answer.verdict, c.verdict) << c.driver << ": " << answer.why;
  }
}

TEST(DriverHalves, DisagreementIs803AndMissingForwardCompatibility804) {
  Version kernel = version("570.124.06");
  EXPECT_EQ(judge_halves({kernel, kernel, false, kConsumer}).verdict, kOk);
  DriverAnswer differ = judge_halves({kernel, version("580.65.06"), false, kDataCenter});
  EXPECT_EQ(differ.verdict, kFailure);
  EXPECT_NE(differ.why.find("803"), std::string::npos);
  EXPECT_NE(differ.fix.find("reboot"), std::string::npos);
  EXPECT_EQ(judge_halves({kernel, version("580.65.06"), true, kDataCenter}).verdict, kOk);
  DriverAnswer none = judge_halves({kernel, version("580.65.06"), true, kConsumer});
  EXPECT_EQ(none.verdict, kFailure);
  EXPECT_NE(none.why.find("804"), std::string::npos);
  EXPECT_EQ(judge_halves({version("580.65.06"), kernel, true, kDataCenter}).verdict, kFailure);
}

TEST(GpuClass, FollowsBrandAndName) {
  constexpr int kNvidia = 14;
  EXPECT_EQ(gpu_class(kNvidia, "NVIDIA H100 80GB HBM3"), kDataCenter);
  EXPECT_EQ(gpu_class(2, "Tesla T4"), kDataCenter);
  EXPECT_EQ(gpu_class(kNvidia, "NVIDIA RTX 6000 Ada Generation"), kWorkstation);
  EXPECT_EQ(gpu_class(5, "NVIDIA GeForce RTX 4090"), kConsumer);
  EXPECT_EQ(gpu_class(0, "NVIDIA GeForce RTX 4090"), kConsumer);
  EXPECT_EQ(gpu_class(0, "something new"), GpuClass::kUnknown);
}

TEST(DriverTable, IsRead) {
  EXPECT_EQ(driver_table().size(), 53U);
  EXPECT_EQ(driver_table().front().forward_from, (std::vector<int>{535, 570, 580, 590}));
}

}  // namespace
}  // namespace ljtrain::image
