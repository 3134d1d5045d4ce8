#include "index_update.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "annotation_file.h"
#include "base/errors.h"
#include "base/text.h"
#include "folder_scan.h"
#include "read_summary.h"
#include "store/annotations.h"

namespace ljtrain::cnp {
namespace {

namespace fs = std::filesystem;

// Files read between two commits: a reader that is killed loses no more than these.
constexpr std::size_t kBatch = 1000;

// What the index knows of a folder and what is there now.
struct Difference {
  std::vector<std::pair<std::string, std::int64_t>> changed;  // id, inode: new or replaced
  std::vector<std::string> gone;                              // ids
};

std::string id_of(const std::string& file_name) {
  return file_name.substr(0, file_name.size() - std::string_view(".json").size());
}

Difference difference(sqlite::Database& database, const char* query, const fs::path& folder,
                      FileIdentity identity) {
  // The index first: what another process adds to it meanwhile must not look like gone.
  FolderListing known;
  sqlite::Statement rows = database.prepare(query);
  while (rows.step()) known.emplace(rows.text(0), rows.integer(1));
  Difference found;
  for (auto& [name, inode] : list_json_files(folder, identity)) {
    std::string id = id_of(name);
    auto old = known.find(id);
    if (old == known.end() || old->second != inode) found.changed.emplace_back(id, inode);
    if (old != known.end()) known.erase(old);
  }
  for (auto& [id, inode] : known) found.gone.push_back(id);
  return found;
}

std::string stored_fingerprint(sqlite::Database& database, std::string_view name) {
  sqlite::Statement row = database.prepare("SELECT value FROM state WHERE name = ?1");
  row.bind(1, name);
  return row.step() ? row.text(0) : std::string("never");
}

// An unsettled fingerprint equals none that is taken later.
void store_fingerprint(sqlite::Database& database, std::string_view name,
                       const FolderFingerprint& fingerprint) {
  std::string value = fingerprint.settled ? fingerprint.value : "unsettled";
  sqlite::Statement put = database.prepare("INSERT OR REPLACE INTO state VALUES (?1, ?2)");
  put.bind(1, name).bind(2, std::string_view(value)).run();
}

class RecordWriter {
 public:
  explicit RecordWriter(sqlite::Database& database)
      : problem_(database.prepare(
            "INSERT OR REPLACE INTO records (id, inode, problem) VALUES (?1, ?2, ?3)")),
        record_(database.prepare(
            "INSERT OR REPLACE INTO records VALUES (?1, ?2, NULL, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, "
            "?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24)")) {}

  void problem(std::string_view id, std::int64_t inode, std::string_view sentence) {
    problem_.bind(1, id).bind(2, inode).bind(3, sentence).run();
  }

  void record(const Summary& summary, std::int64_t inode) {
    std::optional<double> low;
    std::optional<double> high;
    if (summary.step_ci95_s) {
      low = summary.step_ci95_s->low;
      high = summary.step_ci95_s->high;
    }
    int at = 0;
    record_.bind(++at, std::string_view(summary.id));
    record_.bind(++at, inode);
    for (const std::string* text : {&summary.created, &summary.kind, &summary.status}) {
      record_.bind(++at, std::string_view(*text));
    }
    for (const auto* text : {&summary.failure, &summary.source, &summary.model, &summary.engine,
                             &summary.device, &summary.precision, &summary.scale}) {
      bind_text(++at, *text);
    }
    for (const auto& number :
         {summary.ranks, summary.zero_stage, summary.sequence_length, summary.micro_batch}) {
      record_.bind(++at, number);
    }
    for (const auto& number :
         {summary.step_median_s, low, high, summary.tokens_per_s, summary.mfu}) {
      record_.bind(++at, number);
    }
    record_.bind(++at, summary.peak_memory_bytes);
    bind_text(++at, summary.components);
    bind_text(++at, summary.source_digest);
    record_.run();
  }

 private:
  void bind_text(int at, const std::optional<std::string>& text) {
    if (text) {
      record_.bind(at, std::string_view(*text));
    } else {
      record_.bind_null(at);
    }
  }

  sqlite::Statement problem_;
  sqlite::Statement record_;
};

// "indexing records: 12,000 of 100,000", on a terminal that waits for it.
void show_progress(std::size_t done, std::size_t all) {
  constexpr std::size_t kWorthShowing = 2 * kBatch;
  if (all < kWorthShowing || ::isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\rindexing records: {} of {}{}", done, all, done == all ? "\r\x1b[K" : "");
}

std::size_t update_records(sqlite::Database& database, const fs::path& folder) {
  Difference found =
      difference(database, "SELECT id, inode FROM records", folder, FileIdentity::kInode);
  RecordWriter writer(database);
  struct Read {
    std::size_t file = 0;
    Summary summary;
    std::string problem;
  };
  for (std::size_t begin = 0; begin < found.changed.size(); begin += kBatch) {
    std::size_t end = std::min(begin + kBatch, found.changed.size());
    std::vector<Read> batch;  // read before the transaction: it holds up other writers
    for (std::size_t i = begin; i < end; ++i) {
      Read& read = batch.emplace_back(Read{.file = i, .summary = {}, .problem = {}});
      fs::path file = folder / (found.changed[i].first + ".json");
      try {
        read.summary = read_summary(file);
      } catch (const base::UserError& error) {
        read.problem = error.what();
      }
    }
    sqlite::Transaction transaction(database);
    for (const Read& read : batch) {
      const auto& [id, inode] = found.changed[read.file];
      if (read.problem.empty()) {
        writer.record(read.summary, inode);
      } else {
        writer.problem(id, inode, read.problem);
      }
    }
    transaction.commit();
    show_progress(end, found.changed.size());
  }
  if (!found.gone.empty()) {
    sqlite::Transaction transaction(database);
    sqlite::Statement remove = database.prepare("DELETE FROM records WHERE id = ?1");
    for (const std::string& id : found.gone) remove.bind(1, std::string_view(id)).run();
    transaction.commit();
  }
  return found.changed.size();
}

void update_annotations(sqlite::Database& database, const fs::path& folder) {
  Difference found = difference(database, "SELECT id, inode FROM annotations", folder,
                                FileIdentity::kInodeAndTime);
  if (found.changed.empty() && found.gone.empty()) return;
  sqlite::Transaction transaction(database);
  sqlite::Statement remove = database.prepare("DELETE FROM annotations WHERE id = ?1");
  sqlite::Statement remove_tags = database.prepare("DELETE FROM tags WHERE id = ?1");
  sqlite::Statement add = database.prepare("INSERT INTO annotations VALUES (?1, ?2, ?3, ?4)");
  sqlite::Statement add_tag = database.prepare("INSERT OR IGNORE INTO tags VALUES (?1, ?2)");
  for (const std::string& id : found.gone) {
    remove.bind(1, std::string_view(id)).run();
    remove_tags.bind(1, std::string_view(id)).run();
  }
  for (const auto& [id, inode] : found.changed) {
    remove.bind(1, std::string_view(id)).run();
    remove_tags.bind(1, std::string_view(id)).run();
    Annotation annotation;
    std::string problem;
    try {
      annotation = read_annotation(folder / (id + ".json"));
    } catch (const base::UserError& error) {
      problem = error.what();
    }
    add.bind(1, std::string_view(id)).bind(2, inode);
    problem.empty() ? add.bind_null(3) : add.bind(3, std::string_view(problem));
    annotation.note.empty() ? add.bind_null(4) : add.bind(4, std::string_view(annotation.note));
    add.run();
    for (const std::string& tag : annotation.tags) {
      add_tag.bind(1, std::string_view(tag)).bind(2, std::string_view(id)).run();
    }
  }
  transaction.commit();
}

}  // namespace

std::size_t update_index(sqlite::Database& database, const fs::path& folder) {
  std::size_t read = 0;
  FolderFingerprint records = fingerprint(folder);
  if (records.value != stored_fingerprint(database, "records")) {
    read = update_records(database, folder);
    store_fingerprint(database, "records", records);
  }
  fs::path annotations_folder = folder / kAnnotationsFolder;
  FolderFingerprint annotations = fingerprint(annotations_folder);
  if (annotations.value != stored_fingerprint(database, "annotations")) {
    update_annotations(database, annotations_folder);
    store_fingerprint(database, "annotations", annotations);
  }
  return read;
}

}  // namespace ljtrain::cnp
