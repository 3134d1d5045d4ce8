#include "index_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/errors.h"
#include "base/text.h"

namespace ljtrain::cnp {
namespace {

namespace fs = std::filesystem;

// kMigrations[v] takes an index from version v to v + 1. Never changed once released, only added to.
constexpr std::array<const char*, kIndexVersion> kMigrations = {
    // One row a file. A file that is no record has its problem; the rest of its row is null.
    R"sql(
CREATE TABLE records (
  id TEXT PRIMARY KEY, inode INTEGER NOT NULL, problem TEXT,
  created TEXT, kind TEXT, status TEXT, failure TEXT, source TEXT,
  model TEXT, engine TEXT, device TEXT, precision TEXT, scale TEXT,
  ranks INTEGER, zero_stage INTEGER, sequence_length INTEGER, micro_batch INTEGER,
  step_median_s REAL, step_low_s REAL, step_high_s REAL,
  tokens_per_s REAL, mfu REAL, peak_memory_bytes INTEGER, components TEXT
) WITHOUT ROWID;
CREATE INDEX records_by_time ON records (created DESC, id DESC) WHERE problem IS NULL;
CREATE INDEX records_by_model ON records (model, created DESC, id DESC) WHERE problem IS NULL;
CREATE INDEX records_with_problems ON records (id) WHERE problem IS NOT NULL;
CREATE TABLE annotations (id TEXT PRIMARY KEY, inode INTEGER NOT NULL, problem TEXT, note TEXT)
  WITHOUT ROWID;
CREATE TABLE tags (tag TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (tag, id)) WITHOUT ROWID;
CREATE INDEX tags_by_record ON tags (id, tag);
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
)sql",
    // Imported records tell the digest of what they were made from; those there are read again.
    R"sql(
ALTER TABLE records ADD COLUMN source_digest TEXT;
CREATE INDEX records_by_digest ON records (source_digest) WHERE source_digest IS NOT NULL;
UPDATE records SET inode = 0 WHERE source IS NOT NULL;
DELETE FROM state WHERE name = 'records';
)sql",
};

fs::path index_folder(const fs::path& folder) { return folder / ".cnp"; }
fs::path index_path(const fs::path& folder) { return index_folder(folder) / "index.sqlite"; }

void migrate(sqlite::Database& database, const fs::path& file) {
  auto version_of = [&] { return database.integer("PRAGMA user_version"); };
  std::int64_t version = version_of();
  if (version == kIndexVersion) return;
  sqlite::Transaction transaction(database);
  version = version_of();  // another process may have been quicker
  if (version > kIndexVersion || version < 0) {
    throw base::user_error(
        "{}: a later version of ljtrain made this index (version {}, this one knows {}): upgrade "
        "ljtrain, or run `cnp index --rebuild`",
        base::printable(file.string()), version, kIndexVersion);
  }
  for (; version < kIndexVersion; ++version) {
    database.execute(kMigrations[static_cast<std::size_t>(version)]);
  }
  database.execute(fmt::format("PRAGMA user_version = {}", kIndexVersion).c_str());
  transaction.commit();
}

}  // namespace

base::UniqueFd lock_file(const fs::path& file, bool exclusive) {
  constexpr auto kPatience = std::chrono::seconds(30);
  constexpr auto kPause = std::chrono::milliseconds(5);
  base::UniqueFd lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock) {
    throw sqlite::Error(SQLITE_CANTOPEN,
                        fmt::format("{}: {}", file.string(), std::strerror(errno)));
  }
  auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (::flock(lock.get(), (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      throw sqlite::Error(SQLITE_CANTOPEN,
                          fmt::format("{}: {}", file.string(), std::strerror(errno)));
    }
    if (std::chrono::steady_clock::now() > deadline) {
      throw base::user_error(
          "{}: another process has held this lock for 30 s; end it and try again",
          base::printable(file.string()));
    }
    std::this_thread::sleep_for(kPause);
  }
  return lock;
}

ino_t index_inode(const fs::path& folder) {
  struct stat status{};
  return ::stat(index_path(folder).c_str(), &status) == 0 ? status.st_ino : 0;
}

IndexFile open_index(const fs::path& folder) {
  std::error_code code;
  fs::create_directory(index_folder(folder), code);
  base::UniqueFd lock = lock_file(index_folder(folder) / "lock", false);
  fs::path file = index_path(folder);
  bool is_new = !fs::exists(file, code);
  sqlite::Database database(file);
  // An index that is lost is made anew, so it need not be synced to disk at each change.
  database.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;");
  migrate(database, file);
  return {.database = std::move(database), .lock = std::move(lock), .is_new = is_new};
}

void remove_index(const fs::path& folder, ino_t seen_inode) {
  base::UniqueFd lock = lock_file(index_folder(folder) / "lock", true);
  if (index_inode(folder) != seen_inode) return;
  std::error_code code;
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    fs::remove(index_path(folder).string() + suffix, code);
  }
}

IndexFile memory_index() {
  sqlite::Database database(":memory:");
  migrate(database, ":memory:");
  return {.database = std::move(database), .lock = {}, .is_new = true};
}

}  // namespace ljtrain::cnp
