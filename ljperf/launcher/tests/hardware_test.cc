#include "launcher/hardware.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

std::vector<Core> cores(int count) {
  std::vector<Core> result;
  for (int core = 0; core < count; ++core) {
    result.push_back({{core, core + count}, 0});
  }
  return result;
}

TEST(PlaceRanks, GivesEveryRankTheSameNumberOfNeighbouringCores) {
  auto places = place_ranks(cores(7), 3, false);
  EXPECT_EQ(places, (std::vector<std::vector<int>>{{0, 1, 7, 8}, {2, 3, 9, 10}, {4, 5, 11, 12}}));
}

TEST(PlaceRanks, MoreRanksThanCoresNeedAnExplicitWish) {
  try {
    place_ranks(cores(2), 3, false);
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_NE(std::string(error.what()).find("--oversubscribe"), std::string::npos);
  }
  EXPECT_EQ(place_ranks(cores(2), 3, true),
            (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {0, 2}}));
  EXPECT_THROW(place_ranks(cores(2), 0, true), base::UserError);
}

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest()
      : mount_(std::filesystem::temp_directory_path() / fmt::format("cg.{}", ::getpid())) {}
  ~CgroupTest() override { std::filesystem::remove_all(mount_); }
  void write(const std::string& file, const std::string& content) {
    std::filesystem::create_directories((mount_ / file).parent_path());
    std::ofstream(mount_ / file) << content;
  }
  std::filesystem::path mount_;
};

TEST_F(CgroupTest, V2TakesTheTightestOnTheWayUp) {
  write("a/b/memory.max", "max\n");
  write("a/memory.max", "1000\n");
  write("memory.max", "2000\n");
  EXPECT_EQ(cgroup_memory_limit("0::/a/b\n", mount_), 1000U);
}

TEST_F(CgroupTest, V1NoLimitIsAHugeNumber) {
  write("memory/x/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(cgroup_memory_limit("4:memory:/x\n0::/\n", mount_), std::nullopt);
  write("memory/memory.limit_in_bytes", "5000\n");
  EXPECT_EQ(cgroup_memory_limit("9:cpu,cpuacct:/x\n4:memory:/x\n", mount_), 5000U);
}

TEST_F(CgroupTest, TheCpuQuotaIsTheTightestOnTheWayUp) {
  write("a/b/cpu.max", "max 100000\n");
  write("a/cpu.max", "250000 100000\n");
  EXPECT_EQ(cgroup_cpu_quota("0::/a/b\n", mount_), 2.5);
  write("cpu/x/cpu.cfs_quota_us", "-1\n");
  write("cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_quota("3:cpu,cpuacct:/x\n", mount_), std::nullopt);
  write("cpu/x/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(cgroup_cpu_quota("3:cpu,cpuacct:/x\n", mount_), 0.5);
}

TEST(Hardware, UsableCoresRespectTheQuota) {
  Hardware hardware;
  hardware.cores = cores(8);
  EXPECT_EQ(hardware.usable_cores(), 8);
  hardware.cpu_quota = 2.5;
  EXPECT_EQ(hardware.usable_cores(), 2);
  hardware.cpu_quota = 0.2;
  EXPECT_EQ(hardware.usable_cores(), 1);
}

TEST_F(CgroupTest, OddTextGivesNoLimit) {
  for (const char* text : {"", "::", "a", "0::", "7:memory", "\n\n"}) {
    EXPECT_EQ(cgroup_memory_limit(text, mount_), std::nullopt) << text;
  }
}

TEST(DetectHardware, FindsThisMachine) {
  Hardware hardware = detect_hardware();
  EXPECT_GE(hardware.cores.size(), 1U);
  EXPECT_GT(hardware.memory_bytes, std::uint64_t{100} << 20);
  EXPECT_LE(hardware.usable_memory_bytes(), hardware.memory_bytes);
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int cpus = 0;
  for (const Core& core : hardware.cores) {
    for (int cpu : core.cpus) {
      EXPECT_TRUE(CPU_ISSET(static_cast<std::size_t>(cpu), &allowed));
      ++cpus;
    }
  }
  EXPECT_EQ(cpus, CPU_COUNT(&allowed));
}

}  // namespace
}  // namespace ljtrain::ljperf
