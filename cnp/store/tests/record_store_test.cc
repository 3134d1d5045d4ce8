#include "store/record_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/errors.h"
#include "cnp/record_file.h"
#include "folder_scan.h"
#include "index_file.h"
#include "store/annotations.h"
#include "store/resolve.h"

namespace ljtrain::cnp {
namespace {

namespace fs = std::filesystem;

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "store-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string add(const std::string& id) {
    base::OrderedJson record{{"schema_version", 1},
                             {"kind", "collectives"},
                             {"record_id", id},
                             {"created", "2026-11-30T12:00:00Z"},
                             {"status", "completed"},
                             {"failure", nullptr},
                             {"source",
                              {{"format", "nccl-tests"},
                               {"file", "x"},
                               {"bytes", 1},
                               {"digest", "0"},
                               {"imported", "2026-11-30T12:00:00Z"},
                               {"notes", base::OrderedJson::array()}}},
                             {"ranks", 2},
                             {"library_version", nullptr},
                             {"gpus", base::OrderedJson::array()},
                             {"rows", base::OrderedJson::array()}};
    record["rows"].push_back({{"library", "nccl"},
                              {"interface", "c"},
                              {"op", "all_reduce"},
                              {"dtype", "float32"},
                              {"ranks", 2},
                              {"bytes", 8},
                              {"in_place", false},
                              {"time_us", 1.5},
                              {"algbw_gbps", nullptr},
                              {"busbw_gbps", nullptr},
                              {"wrong", 0}});
    add_document(folder_, record);
    return id;
  }

  fs::path folder_;
};

TEST_F(StoreTest, ReadsOnlyWhatIsNew) {
  add("a-1");
  add("a-2");
  EXPECT_EQ(RecordStore(folder_).index_state().read, 2U);
  EXPECT_EQ(RecordStore(folder_).index_state().read, 0U);
  add("a-3");
  {
    RecordStore store(folder_);
    EXPECT_EQ(store.index_state().read, 1U);
    EXPECT_EQ(store.count(), 3U);
  }  // whoever rebuilds waits for those that have the index open
  fs::remove(folder_ / "a-1.json");
  EXPECT_EQ(RecordStore(folder_).count(), 2U);
  EXPECT_EQ(RecordStore(folder_, RecordStore::Index::kRebuild).index_state().read, 2U);
}

TEST_F(StoreTest, ASettledFingerprintTellsEveryLaterChange) {
  EXPECT_EQ(fingerprint(folder_ / "none").value, "");
  for (int i = 0; i < 20; ++i) {
    FolderFingerprint before = fingerprint(folder_);
    std::ofstream(folder_ / std::to_string(i)) << i;
    FolderFingerprint after = fingerprint(folder_);
    EXPECT_TRUE(!before.settled || before.value != after.value) << i;
  }
  EXPECT_FALSE(fingerprint(folder_).settled);
  std::this_thread::sleep_for(std::chrono::milliseconds(80));
  EXPECT_TRUE(fingerprint(folder_).settled);
}

TEST_F(StoreTest, AnnotationsFromManyThreadsAreAllKept) {
  constexpr int kThreads = 8;
  constexpr int kEach = 10;
  std::string id = add("a-1");
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < kEach; ++k) {
        change_annotation(folder_, id, [&](Annotation& annotation) {
          annotation.tags.push_back(std::to_string(i) + "." + std::to_string(k));
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(RecordStore(folder_).find(id)->tags.size(), std::size_t{kThreads} * kEach);
}

TEST_F(StoreTest, RemovesNothingThatIsMarked) {
  std::string id = add("a-1");
  change_annotation(folder_, id, [](Annotation& annotation) { annotation.note = "mine"; });
  EXPECT_FALSE(remove_record(folder_, id));
  EXPECT_TRUE(fs::exists(folder_ / "a-1.json"));
  change_annotation(folder_, id, [](Annotation& annotation) { annotation.note.clear(); });
  EXPECT_TRUE(remove_record(folder_, id));
  EXPECT_FALSE(fs::exists(folder_ / "a-1.json"));
}

TEST_F(StoreTest, ATagBeatsTheLettersOfAnId) {
  std::string first = add("a-1");
  std::string second = add("b-2");
  change_annotation(folder_, second, [](Annotation& annotation) { annotation.tags = {"a"}; });
  RecordStore store(folder_);
  EXPECT_EQ(resolve_record(store, "a"), folder_ / "b-2.json");
  EXPECT_EQ(resolve_record(store, "1"), folder_ / "a-1.json");
  EXPECT_EQ(resolve_record(store, first), folder_ / "a-1.json");
  EXPECT_THROW(resolve_record(store, "latest"), base::UserError);  // no benchmark
}

TEST_F(StoreTest, EveryMigrationLeadsToTheSameSchema) {
  fs::create_directory(folder_ / ".cnp");
  auto schema = [](sqlite::Database& database) {
    std::string text;
    sqlite::Statement rows =
        database.prepare("SELECT name || ' ' || type FROM sqlite_schema ORDER BY name");
    while (rows.step()) text += rows.text(0) + "\n";
    return text;
  };
  IndexFile fresh = memory_index();
  IndexFile opened = open_index(folder_);
  EXPECT_EQ(schema(fresh.database), schema(opened.database));
  EXPECT_EQ(opened.database.integer("PRAGMA user_version"), kIndexVersion);
}

}  // namespace
}  // namespace ljtrain::cnp
