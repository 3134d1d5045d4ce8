// The records of a folder, with an index that makes thousands of them quick to search.
//
//   FOLDER/RECORD_ID.json              the records: the truth
//   FOLDER/annotations/RECORD_ID.json  tags and notes: the truth, too
//   FOLDER/.cnp/                       the index (SQLite) and its locks; may be deleted at any time
//
// Any number of processes may read and write at once. Opening a store brings the index up to date
// with the folder: what is new, changed or gone is told by names and inode numbers, so files must be
// replaced by rename, as every writer here does; after an edit in place, rebuild.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/summary.h"

namespace ljtrain::cnp {

struct Filter {
  std::optional<std::string> model;
  std::optional<std::string> engine;
  std::optional<std::string> tag;
  std::optional<std::string> status;
  std::optional<std::string> kind;
  std::optional<std::string> since;   // ISO 8601: created at that time or later
  std::optional<std::string> before;  // created before that time
  std::optional<std::string> source_digest;
};

// A file in the folder that is no record.
struct Problem {
  std::string file;      // its name within the folder
  std::string sentence;  // what is wrong with it, and where
};

// How the index came to be what it is, for whoever wants to tell the user.
struct IndexState {
  bool rebuilt = false;     // it was missing, damaged, or of an earlier version
  std::string why_rebuilt;  // empty: it was missing, or the caller asked
  bool in_memory = false;   // the folder could not be written: nothing was kept
  std::string why_in_memory;
  std::size_t read = 0;  // files read to bring it up to date
};

class RecordStore {
 public:
  enum class Index { kUpdate, kRebuild };

  // UserError when the folder is no folder or cannot be read, or the index was made by a later
  // version of ljtrain. A folder that does not exist is an empty store; it is not made. A damaged
  // index is made anew; one that cannot be written (read-only folder, full disk) is replaced by one
  // in memory.
  explicit RecordStore(std::filesystem::path folder, Index index = Index::kUpdate);
  RecordStore(RecordStore&&) noexcept;
  RecordStore& operator=(RecordStore&&) noexcept;
  ~RecordStore();

  const std::filesystem::path& folder() const;
  const IndexState& index_state() const;

  // Newest first. `most` 0: all.
  std::vector<Summary> list(const Filter& filter = {}, std::size_t most = 0) const;
  std::size_t count(const Filter& filter = {}) const;
  std::vector<Problem> problems() const;

  // Ids that begin or end with `part`, newest first, at most `most`.
  std::vector<std::string> ids_matching(std::string_view part, std::size_t most) const;
  std::optional<Summary> find(std::string_view id) const;
  // The file of a record; it need not exist.
  std::filesystem::path file_of(std::string_view id) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes FOLDER/RECORD_ID.json as write_record() does, for a document of any kind. UserError when it is
// no record, or one with this record_id is there.
std::filesystem::path add_document(const std::filesystem::path& folder,
                                   const base::OrderedJson& document);

// Removes a record's file unless it has a tag or a note, which is looked up under the lock that
// writers of annotations hold. Returns whether the record is gone. UserError when it cannot be
// removed.
bool remove_record(const std::filesystem::path& folder, std::string_view id);

// Removes files that writers which were killed left behind (*.tmp), an hour old at least. Returns how
// many.
std::size_t remove_leftovers(const std::filesystem::path& folder);

}  // namespace ljtrain::cnp
