// The SQLite file of a store: where it lies, its schema and migrations, and who may touch it when.
#pragma once

#include <filesystem>
#include <string>

#include "base/unique_fd.h"
#include "sqlite.h"

namespace ljtrain::cnp {

// Version of the index, kept as SQLite's user_version. docs/cnp.md tells how it is migrated.
inline constexpr int kIndexVersion = 2;

// An advisory lock on a file, given back on destruction. `exclusive` waits for all others; UserError
// after 30 s.
base::UniqueFd lock_file(const std::filesystem::path& file, bool exclusive);

// An open index. While it lives, nobody replaces its files: a shared lock says so.
struct IndexFile {
  sqlite::Database database;
  base::UniqueFd lock;
  bool is_new = false;
};

// Opens or makes FOLDER/.cnp/index.sqlite and brings its schema up to kIndexVersion. sqlite::Error
// when it is damaged or cannot be written; UserError when a later version made it.
IndexFile open_index(const std::filesystem::path& folder);
// Removes the index, once nobody has it open, unless somebody has made it anew since `seen_inode`.
void remove_index(const std::filesystem::path& folder, ino_t seen_inode);
// Inode number of the index file, 0 when there is none.
ino_t index_inode(const std::filesystem::path& folder);
// One that is gone when it is closed.
IndexFile memory_index();

}  // namespace ljtrain::cnp
