#include "base/memory_limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/cgroup.h"

namespace ljtrain::base {
namespace {

// A root with the files that a test writes, as the kernel would show them.
class MemoryLimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/memory-limits-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) const {
    std::filesystem::path path = root_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  CgroupMemory cgroup() const { return read_memory_limits(root_).cgroup; }

  std::string root_;
};

TEST_F(MemoryLimitsTest, V2TakesTheTightestLimitOnTheWayUp) {
  write("proc/self/cgroup", "0::/pod/container\n");
  write("sys/fs/cgroup/pod/container/memory.max", "max\n");
  write("sys/fs/cgroup/pod/container/memory.current", "700\n");
  write("sys/fs/cgroup/pod/memory.max", "1000\n");
  write("sys/fs/cgroup/pod/memory.current", "800\n");
  write("sys/fs/cgroup/pod/memory.stat", "anon 500\ninactive_file 150\n");
  CgroupMemory memory = cgroup();
  EXPECT_TRUE(memory.unified);
  EXPECT_EQ(memory.limit_bytes, 1000U);
  EXPECT_EQ(memory.used_bytes, 650U);  // of the group that limits, less what can be dropped
  EXPECT_EQ(memory.left_bytes, 350U);
}

TEST_F(MemoryLimitsTest, WhatIsLeftIsTheLeastOnTheWayUpNotThatOfTheTightestLimit) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "1000\n");
  write("sys/fs/cgroup/a/b/memory.current", "100\n");
  write("sys/fs/cgroup/a/memory.max", "2000\n");
  write("sys/fs/cgroup/a/memory.current", "1950\n");
  CgroupMemory memory = cgroup();
  EXPECT_EQ(memory.limit_bytes, 1000U);
  EXPECT_EQ(memory.used_bytes, 100U);
  EXPECT_EQ(memory.left_bytes, 50U);
}

TEST_F(MemoryLimitsTest, V2WithoutALimitSaysWhatIsUsed) {
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "max\n");
  write("sys/fs/cgroup/a/memory.current", "700\n");
  CgroupMemory memory = cgroup();
  EXPECT_EQ(memory.limit_bytes, std::nullopt);
  EXPECT_EQ(memory.left_bytes, std::nullopt);
  EXPECT_EQ(memory.used_bytes, 700U);
}

TEST_F(MemoryLimitsTest, V1HasAHugeNumberForNoLimit) {
  write("proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/x/y\n0::/\n");
  write("sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/x/y/memory.usage_in_bytes", "300\n");
  EXPECT_EQ(cgroup().limit_bytes, std::nullopt);
  write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "4000\n");
  write("sys/fs/cgroup/memory/x/memory.stat", "cache 9\ntotal_inactive_file 500\n");
  CgroupMemory memory = cgroup();
  EXPECT_FALSE(memory.unified);
  EXPECT_EQ(memory.limit_bytes, 5000U);
  EXPECT_EQ(memory.used_bytes, 3500U);
  EXPECT_EQ(memory.left_bytes, 1500U);
}

TEST_F(MemoryLimitsTest, V1KnowsLimitsAboveWhatAContainerSees) {
  // The path is the host's; the container's mount shows its own group as the root.
  write("proc/self/cgroup", "4:memory:/kubepods/pod1/c1\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "100\n");
  write("sys/fs/cgroup/memory/memory.stat",
        "hierarchical_memory_limit 4000\ntotal_inactive_file 0\n");
  EXPECT_EQ(cgroup().limit_bytes, 4000U);
  EXPECT_EQ(cgroup().left_bytes, 3900U);
  write("sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 9223372036854771712\n");
  EXPECT_EQ(cgroup().limit_bytes, std::nullopt);
}

TEST_F(MemoryLimitsTest, TheHybridLayoutHasV2InAFolderOfItsOwn) {
  write("proc/self/cgroup", "4:cpu:/x\n0::/slice\n");
  write("sys/fs/cgroup/cpu/x/cpu.shares", "1024\n");
  write("sys/fs/cgroup/unified/slice/memory.max", "123456\n");
  EXPECT_EQ(cgroup().limit_bytes, 123456U);
  EXPECT_TRUE(cgroup().unified);
  // And where v1 has the memory controller, v2's tree says nothing about memory.
  write("proc/self/cgroup", "4:memory:/x\n0::/slice\n");
  write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "999\n");
  EXPECT_EQ(cgroup().limit_bytes, 999U);
}

TEST_F(MemoryLimitsTest, UsedMoreThanTheLimitLeavesNothing) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "100\n");
  write("sys/fs/cgroup/memory.current", "130\n");
  EXPECT_EQ(cgroup().left_bytes, 0U);
}

TEST_F(MemoryLimitsTest, TheHostAndTheProcess) {
  write("proc/meminfo", "MemTotal:  2000 kB\nMemFree: 1 kB\nMemAvailable:   500 kB\n");
  write("proc/self/status", "Name:\tpython\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\n");
  MemoryLimits limits = read_memory_limits(root_);
  EXPECT_EQ(limits.host_bytes, 2000U * 1024);
  EXPECT_EQ(limits.available_bytes, 500U * 1024);
  EXPECT_EQ(limits.resident_bytes, 200U * 1024);
  EXPECT_EQ(limits.resident_peak_bytes, 300U * 1024);
}

TEST_F(MemoryLimitsTest, WhatIsMissingOrMalformedIsUnknown) {
  MemoryLimits limits = read_memory_limits(root_);
  EXPECT_EQ(limits.host_bytes, std::nullopt);
  EXPECT_EQ(limits.resident_bytes, std::nullopt);
  EXPECT_EQ(limits.cgroup.limit_bytes, std::nullopt);
  for (const char* text : {"", "nonsense\n", "0:\n", "::\n", "4:memory\n"}) {
    write("proc/self/cgroup", text);
    EXPECT_EQ(cgroup().limit_bytes, std::nullopt) << text;
  }
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "many\n");
  EXPECT_EQ(cgroup().limit_bytes, std::nullopt);
}

TEST(MemoryLimits, OfThisProcess) {
  MemoryLimits limits = read_memory_limits();
  ASSERT_TRUE(limits.host_bytes.has_value());
  ASSERT_TRUE(limits.resident_bytes.has_value());
  EXPECT_LE(*limits.resident_bytes, *limits.host_bytes);
  EXPECT_GE(*limits.resident_peak_bytes, *limits.resident_bytes);
}

}  // namespace
}  // namespace ljtrain::base
