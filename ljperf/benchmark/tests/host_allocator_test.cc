#include "benchmark/host_allocator.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "benchmark/options.h"

namespace ljtrain::ljperf {
namespace {

namespace fs = std::filesystem;

// A machine with both allocators, and the kernel's setting as given.
class HostAllocatorTest : public testing::Test {
 protected:
  HostAllocatorTest() {
    folder_ = fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(folder_);
    std::ofstream(folder_ / "libjemalloc.so.2") << "library";
    std::ofstream(folder_ / "libtcmalloc_minimal.so.4") << "library";
    kernel_says("always [madvise] never");
  }
  ~HostAllocatorTest() override { fs::remove_all(folder_); }

  void kernel_says(const std::string& text) { std::ofstream(folder_ / "enabled") << text << "\n"; }
  HostAllocator choose() {
    return choose_allocator(options_, {"/nowhere", folder_}, folder_ / "enabled", notes_);
  }
  std::string variable(const char* name, const base::Environment& environment = {}) {
    auto variables = allocator_variables(choose(), environment);
    auto found = variables.find(name);
    return found == variables.end() ? "" : found->second.value_or("(removed)");
  }

  fs::path folder_;
  BenchmarkOptions options_;
  std::vector<std::string> notes_;
};

TEST_F(HostAllocatorTest, TheBaseIsGlibcAndNothingIsSet) {
  HostAllocator allocator = choose();
  EXPECT_EQ(allocator.name, "glibc");
  EXPECT_EQ(allocator.library, "");
  EXPECT_FALSE(allocator.huge_pages);
  EXPECT_EQ(allocator.kernel_huge_pages, "madvise");
  EXPECT_TRUE(allocator_variables(allocator, {}).empty());
}

TEST_F(HostAllocatorTest, ALibraryIsPreloadedBeforeTheUsersOwn) {
  options_.allocator = "jemalloc";
  EXPECT_EQ(variable("LD_PRELOAD"), (folder_ / "libjemalloc.so.2").string());
  EXPECT_EQ(variable("LD_PRELOAD", {{"LD_PRELOAD", "/mine.so"}}),
            (folder_ / "libjemalloc.so.2").string() + ":/mine.so");
  options_.allocator = "tcmalloc";
  EXPECT_EQ(variable("LD_PRELOAD"), (folder_ / "libtcmalloc_minimal.so.4").string());
  EXPECT_EQ(variable("TCMALLOC_RELEASE_RATE"), "0");
  EXPECT_EQ(variable("TCMALLOC_RELEASE_RATE", {{"TCMALLOC_RELEASE_RATE", "2"}}), "");
}

TEST_F(HostAllocatorTest, EachAsksForHugePagesInItsOwnWay) {
  options_.huge_pages = true;
  EXPECT_NE(variable("GLIBC_TUNABLES").find("glibc.malloc.hugetlb=1"), std::string::npos);
  options_.allocator = "jemalloc";
  EXPECT_EQ(variable("MALLOC_CONF").find("thp:always,"), 0U);
  EXPECT_EQ(variable("GLIBC_TUNABLES"), "");
  options_.allocator = "tcmalloc";
  EXPECT_EQ(variable("THP_MEM_ALLOC_ENABLE"), "1");
}

TEST_F(HostAllocatorTest, TheUsersOwnSettingsComeLastAndSoWin) {
  options_.allocator = "jemalloc";
  options_.huge_pages = true;
  std::string both = variable("MALLOC_CONF", {{"MALLOC_CONF", "narenas:1"}});
  EXPECT_TRUE(both.ends_with(",narenas:1")) << both;
}

TEST_F(HostAllocatorTest, AMissingLibraryNamesItsPackage) {
  fs::remove(folder_ / "libjemalloc.so.2");
  options_.allocator = "jemalloc";
  try {
    choose();
    FAIL() << "no library, and no error";
  } catch (const base::UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              "--allocator jemalloc: libjemalloc.so.2 is not installed; `apt-get install "
              "libjemalloc2`");
  }
}

TEST_F(HostAllocatorTest, AKernelWithoutHugePagesIsAWarningAndNotExpected) {
  options_.huge_pages = true;
  kernel_says("always madvise [never]");
  EXPECT_FALSE(choose().expects_huge_pages());
  ASSERT_EQ(notes_.size(), 1U);
  EXPECT_NE(notes_[0].find("says never; as root, `echo madvise > "), std::string::npos);
  notes_.clear();
  fs::remove(folder_ / "enabled");
  EXPECT_FALSE(choose().expects_huge_pages());
  ASSERT_EQ(notes_.size(), 1U);
  EXPECT_NE(notes_[0].find("this kernel has none"), std::string::npos);
  notes_.clear();
  kernel_says("[always] madvise never");
  EXPECT_TRUE(choose().expects_huge_pages());
  EXPECT_TRUE(notes_.empty());
}

TEST_F(HostAllocatorTest, ASwitchByItselfBeatsTheStack) {
  options_.with = {"stack"};
  HostAllocator both = choose();
  EXPECT_TRUE(both.name != "glibc" || both.huge_pages);
  options_.allocator = "tcmalloc";
  options_.huge_pages = false;
  EXPECT_EQ(choose().name, "tcmalloc");
  EXPECT_FALSE(choose().huge_pages);
}

TEST_F(HostAllocatorTest, TheUsersLibraryFoldersComeFirst) {
  std::vector<fs::path> folders = library_folders({{"LD_LIBRARY_PATH", "/mine::/other"}});
  ASSERT_GT(folders.size(), 2U);
  EXPECT_EQ(folders[0], "/mine");
  EXPECT_EQ(folders[1], "/other");
}

}  // namespace
}  // namespace ljtrain::ljperf
