#include "store/record_store.h"

#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "folder_scan.h"
#include "index_file.h"
#include "index_update.h"
#include "query.h"

namespace ljtrain::cnp {

namespace fs = std::filesystem;

struct RecordStore::Impl {
  fs::path folder;
  IndexState state;
  std::optional<IndexFile> index;

  void open(RecordStore::Index wanted);
  void open_on_disk(bool rebuild);
};

void RecordStore::Impl::open_on_disk(bool rebuild) {
  ino_t seen = index_inode(folder);
  if (rebuild) remove_index(folder, seen);
  try {
    index.emplace(open_index(folder));
    state.rebuilt = index->is_new;
    state.read = update_index(index->database, folder);
  } catch (const sqlite::Error& error) {
    index.reset();  // before anybody can remove it
    if (!error.is_damage()) throw;
    state.why_rebuilt = error.what();
    remove_index(folder, seen);
    index.emplace(open_index(folder));
    state.rebuilt = true;
    state.read = update_index(index->database, folder);
  }
}

void RecordStore::Impl::open(RecordStore::Index wanted) {
  std::error_code code;
  if (fs::exists(folder, code) && !fs::is_directory(folder, code)) {
    throw base::user_error("{}: is no folder; records are files in a folder",
                           base::printable(folder.string(), 1000));
  }
  if (!fs::exists(folder, code)) {
    index.emplace(memory_index());
    return;
  }
  try {
    open_on_disk(wanted == RecordStore::Index::kRebuild);
  } catch (const sqlite::Error& error) {
    index.reset();
    index.emplace(memory_index());
    state.in_memory = true;
    state.why_in_memory = error.what();
    state.read = update_index(index->database, folder);
  }
}

RecordStore::RecordStore(fs::path folder, Index index) : impl_(std::make_unique<Impl>()) {
  impl_->folder = std::move(folder);
  impl_->open(index);
}
RecordStore::RecordStore(RecordStore&&) noexcept = default;
RecordStore& RecordStore::operator=(RecordStore&&) noexcept = default;
RecordStore::~RecordStore() = default;

const fs::path& RecordStore::folder() const { return impl_->folder; }
const IndexState& RecordStore::index_state() const { return impl_->state; }

fs::path RecordStore::file_of(std::string_view id) const {
  return impl_->folder / fmt::format("{}.json", id);
}

std::vector<Summary> RecordStore::list(const Filter& filter, std::size_t most) const {
  return query_records(impl_->index->database, filter, most);
}

std::size_t RecordStore::count(const Filter& filter) const {
  return count_records(impl_->index->database, filter);
}

std::optional<Summary> RecordStore::find(std::string_view id) const {
  return find_record(impl_->index->database, id);
}

std::vector<Problem> RecordStore::problems() const {
  return query_problems(impl_->index->database);
}

std::vector<std::string> RecordStore::ids_matching(std::string_view part, std::size_t most) const {
  return query_ids_matching(impl_->index->database, part, most);
}

}  // namespace ljtrain::cnp
