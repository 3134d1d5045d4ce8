#include "cnp/record_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "sample_records.h"

namespace ljtrain::cnp {
namespace {

namespace fs = std::filesystem;
using std::chrono::system_clock;

class RecordFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ljtrain-records-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  static Record named() {
    Record record = full_record();
    record.record_id = new_record_id(record.model, system_clock::now());
    return record;
  }

  // Reads every record in the folder (and so fails on half a file); returns how many there are.
  int read_all() const {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().extension() != ".json") continue;
      Record record = read_record(entry.path());
      EXPECT_EQ(record.record_id, entry.path().stem().string());
      ++count;
    }
    return count;
  }

  fs::path folder_;
};

TEST(RecordId, SortsByTimeAndNamesAFile) {
  auto time = system_clock::from_time_t(1796040062);
  EXPECT_EQ(iso8601_utc(time), "2026-11-30T12:01:02Z");
  std::string id = new_record_id("llama3-8b", time);
  EXPECT_EQ(id.substr(0, 27), "20261130T120102Z-llama3-8b-");
  EXPECT_EQ(id.size(), 27U + 8U);
  EXPECT_LT(id, new_record_id("a", time + std::chrono::seconds(1)));
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(new_record_id("m", time));
  EXPECT_EQ(ids.size(), 1000U);
}

TEST(RecordId, HostileModelNames) {
  auto time = system_clock::from_time_t(0);
  auto middle = [&](const std::string& model) {
    std::string id = new_record_id(model, time);
    return id.substr(17, id.size() - 17 - 9);
  };
  EXPECT_EQ(middle("../../etc/passwd"), "etc-passwd");
  EXPECT_EQ(middle("<script>'; --\n"), "script");
  EXPECT_EQ(middle("\u202e\u05d0"), "model");
  EXPECT_EQ(middle(""), "model");
  EXPECT_LE(middle(std::string(1'000'000, 'x')).size(), 60U);
}

TEST_F(RecordFile, WritesAndReads) {
  Record record = named();
  fs::path file = write_record(folder_ / "made" / "here", record);
  EXPECT_EQ(file, folder_ / "made" / "here" / (record.record_id + ".json"));
  EXPECT_EQ(to_json(read_record(file)).dump(), to_json(record).dump());
  EXPECT_THROW(write_record(file.parent_path(), record), base::UserError);  // there already
}

TEST_F(RecordFile, UnwritableFolderIsTheUsersError) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(write_record(folder_ / "file" / "below", named()), base::UserError);
  EXPECT_THROW(write_record(folder_ / "file", named()), base::UserError);
  EXPECT_THROW(write_record("/proc/none", named()), base::UserError);
}

TEST_F(RecordFile, RefusesAnIdThatLeavesTheFolder) {
  for (const char* id : {"", "../x", "a/b", ".hidden", "a b", "x\n"}) {
    Record record = full_record();
    record.record_id = id;
    EXPECT_THROW(write_record(folder_, record), base::UserError) << id;
  }
}

TEST_F(RecordFile, RefusesToWriteWhatItCouldNotRead) {
  Record record = named();
  record.ranks = 0;
  EXPECT_THROW(write_record(folder_, record), base::RunError);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(RecordFile, ThreadsAndProcessesAtOnce) {
  constexpr int kWriters = 4;
  constexpr int kEach = 10;
  std::vector<pid_t> children;
  for (int i = 0; i < kWriters; ++i) {
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int k = 0; k < kEach; ++k) write_record(folder_ / "all", named());
      _exit(0);
    }
    children.push_back(child);
  }
  std::vector<std::thread> threads;
  threads.reserve(kWriters);
  for (int i = 0; i < kWriters; ++i) {
    threads.emplace_back([this] {
      for (int k = 0; k < kEach; ++k) write_record(folder_ / "all", named());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  folder_ /= "all";
  EXPECT_EQ(read_all(), 2 * kWriters * kEach);
  folder_ = folder_.parent_path();
}

// Large records, so that the kill lands within a write.
TEST_F(RecordFile, KilledWriterLeavesNoHalfFile) {
  Record large = full_record();
  cnp::Run run = large.runs[0];
  while (run.steps.size() < 2000) run.steps.push_back(sample_step(1, 1.5, 9));
  large.runs = {run};
  int partial = 0;
  for (int round = 0; round < 20; ++round) {
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) {
        large.record_id = new_record_id(large.model, system_clock::now());
        write_record(folder_, large);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 7 * round));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().extension() == ".tmp") ++partial;
    }
    read_all();
    for (const auto& entry : fs::directory_iterator(folder_)) fs::remove(entry.path());
  }
  RecordProperty("killed_within_a_write", partial);
}

class RecordsFolder : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"LJTRAIN_RECORDS", "XDG_DATA_HOME", "HOME"}) {
      if (const char* value = std::getenv(name); value != nullptr) saved_[name] = value;
      unsetenv(name);
    }
  }
  void TearDown() override {
    for (const char* name : {"LJTRAIN_RECORDS", "XDG_DATA_HOME", "HOME"}) unsetenv(name);
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
  }

  std::map<std::string, std::string> saved_;
};

TEST_F(RecordsFolder, Precedence) {
  EXPECT_THROW(records_folder(), base::UserError);
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(records_folder(), "/home/me/.local/share/ljtrain/records");
  setenv("XDG_DATA_HOME", "relative", 1);
  EXPECT_EQ(records_folder(), "/home/me/.local/share/ljtrain/records");
  setenv("XDG_DATA_HOME", "/data", 1);
  EXPECT_EQ(records_folder(), "/data/ljtrain/records");
  setenv("LJTRAIN_RECORDS", "", 1);
  EXPECT_EQ(records_folder(), "/data/ljtrain/records");
  setenv("LJTRAIN_RECORDS", "chosen", 1);
  EXPECT_EQ(records_folder(), "chosen");
}

}  // namespace
}  // namespace ljtrain::cnp
