#include "query.h"

#include <fmt/format.h>

#include <cstdint>

namespace ljtrain::cnp {
namespace {

constexpr std::string_view kColumns =
    "id, created, kind, status, failure, source, model, engine, device, precision, scale, ranks, "
    "zero_stage, sequence_length, micro_batch, step_median_s, step_low_s, step_high_s, "
    "tokens_per_s, mfu, peak_memory_bytes, components, source_digest";
constexpr std::string_view kNote = "(SELECT note FROM annotations AS a WHERE a.id = records.id)";

// The part after WHERE; which parameters it has depends on the filter.
std::string condition(const Filter& filter) {
  std::string sql = "problem IS NULL";
  int parameter = 0;
  auto add = [&](const std::optional<std::string>& value, std::string_view test) {
    if (value) sql += fmt::format(" AND {} ?{}", test, ++parameter);
  };
  add(filter.model, "model =");
  add(filter.engine, "engine =");
  add(filter.status, "status =");
  add(filter.kind, "kind =");
  add(filter.since, "created >=");
  add(filter.before, "created <");
  add(filter.source_digest, "source_digest =");
  if (filter.tag)
    sql += fmt::format(" AND id IN (SELECT id FROM tags WHERE tag = ?{})", ++parameter);
  return sql;
}

// Binds condition()'s parameters; returns how many there are.
int bind(sqlite::Statement& statement, const Filter& filter) {
  int parameter = 0;
  for (const auto* value : {&filter.model, &filter.engine, &filter.status, &filter.kind,
                            &filter.since, &filter.before, &filter.source_digest, &filter.tag}) {
    if (*value) statement.bind(++parameter, std::string_view(**value));
  }
  return parameter;
}

Summary summary_of(const sqlite::Statement& row) {
  Summary summary;
  int column = 0;
  summary.id = row.text(column++);
  summary.created = row.text(column++);
  summary.kind = row.text(column++);
  summary.status = row.text(column++);
  for (auto* text : {&summary.failure, &summary.source, &summary.model, &summary.engine,
                     &summary.device, &summary.precision, &summary.scale}) {
    *text = row.maybe_text(column++);
  }
  for (auto* number :
       {&summary.ranks, &summary.zero_stage, &summary.sequence_length, &summary.micro_batch}) {
    *number = row.maybe_integer(column++);
  }
  summary.step_median_s = row.maybe_real(column++);
  auto low = row.maybe_real(column++);
  auto high = row.maybe_real(column++);
  if (low && high) summary.step_ci95_s = Interval{.low = *low, .high = *high};
  summary.tokens_per_s = row.maybe_real(column++);
  summary.mfu = row.maybe_real(column++);
  summary.peak_memory_bytes = row.maybe_integer(column++);
  summary.components = row.maybe_text(column++);
  summary.source_digest = row.maybe_text(column++);
  summary.note = row.maybe_text(column++);
  return summary;
}

class TagReader {
 public:
  explicit TagReader(sqlite::Database& database)
      : any_(database.integer("SELECT EXISTS (SELECT 1 FROM tags)") != 0),
        query_(database.prepare("SELECT tag FROM tags WHERE id = ?1 ORDER BY tag")) {}
  std::vector<std::string> of(const std::string& id) {
    std::vector<std::string> tags;
    if (!any_) return tags;
    query_.bind(1, std::string_view(id));
    while (query_.step()) tags.push_back(query_.text(0));
    query_.reset();
    return tags;
  }

 private:
  bool any_;
  sqlite::Statement query_;
};

}  // namespace

std::vector<Summary> query_records(sqlite::Database& database, const Filter& filter,
                                   std::size_t most) {
  std::string sql =
      fmt::format("SELECT {}, {} FROM records WHERE {} ORDER BY created DESC, id DESC{}", kColumns,
                  kNote, condition(filter), most == 0 ? "" : fmt::format(" LIMIT {}", most));
  sqlite::Statement rows = database.prepare(sql);
  bind(rows, filter);
  TagReader tags(database);
  std::vector<Summary> found;
  while (rows.step()) {
    found.push_back(summary_of(rows));
    found.back().tags = tags.of(found.back().id);
  }
  return found;
}

std::size_t count_records(sqlite::Database& database, const Filter& filter) {
  sqlite::Statement count =
      database.prepare(fmt::format("SELECT count(*) FROM records WHERE {}", condition(filter)));
  bind(count, filter);
  count.step();
  return static_cast<std::size_t>(count.integer(0));
}

std::optional<Summary> find_record(sqlite::Database& database, std::string_view id) {
  sqlite::Statement row = database.prepare(
      fmt::format("SELECT {}, {} FROM records WHERE id = ?1 AND problem IS NULL", kColumns, kNote));
  row.bind(1, id);
  if (!row.step()) return std::nullopt;
  Summary summary = summary_of(row);
  summary.tags = TagReader(database).of(summary.id);
  return summary;
}

std::vector<Problem> query_problems(sqlite::Database& database) {
  std::vector<Problem> problems;
  sqlite::Statement rows = database.prepare(
      "SELECT id || '.json', problem FROM records WHERE problem IS NOT NULL UNION ALL "
      "SELECT 'annotations/' || id || '.json', problem FROM annotations WHERE problem IS NOT NULL");
  while (rows.step()) problems.push_back({.file = rows.text(0), .sentence = rows.text(1)});
  return problems;
}

std::vector<std::string> query_ids_matching(sqlite::Database& database, std::string_view part,
                                            std::size_t most) {
  std::vector<std::string> ids;
  sqlite::Statement rows = database.prepare(
      "SELECT id FROM records WHERE problem IS NULL AND (substr(id, 1, length(?1)) = ?1 OR "
      "substr(id, -length(?1)) = ?1) ORDER BY created DESC, id DESC LIMIT ?2");
  rows.bind(1, part).bind(2, static_cast<std::int64_t>(most));
  while (rows.step()) ids.push_back(rows.text(0));
  return ids;
}

}  // namespace ljtrain::cnp
