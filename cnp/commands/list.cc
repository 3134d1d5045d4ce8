// cnp list: the records, newest first.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "base/units.h"
#include "cnp/record_file.h"
#include "commands.h"
#include "filter_options.h"
#include "open_store.h"
#include "store/record_store.h"
#include "table.h"

namespace ljtrain::cnp {
namespace {

constexpr const char* kExamples = R"(Examples:
  cnp list
  cnp list --model deepspeed/llama3-8b --since 7d
  cnp list --tag release --json
  cnp list --status failed --limit 0
)";
constexpr std::size_t kDefaultLimit = 20;

struct ListOptions {
  FilterOptions filter;
  std::size_t limit = kDefaultLimit;
  bool json = false;
};

std::string model_of(const Summary& summary) {
  std::string name = summary.model.value_or("-");
  return summary.engine ? *summary.engine + "/" + name : name;
}

// "1/8": the row is that of a proxy, which no width of the table may hide.
std::string proxy_of(const Summary& summary) {
  std::string scale = summary.scale.value_or("full");
  return scale == "full" ? "" : scale;
}

std::string number(const std::optional<double>& value) {
  return value ? base::format_count(*value) : "-";
}

std::vector<std::string> row_of(const Summary& summary) {
  // "2026-11-30T12:01:02Z" -> "2026-11-30 12:01".
  std::string created = summary.created.substr(0, std::string_view("2026-11-30T12:01").size());
  if (std::size_t t = created.find('T'); t != std::string::npos) created[t] = ' ';
  return {short_id(summary.id),
          created,
          model_of(summary),
          proxy_of(summary),
          summary.ranks ? std::to_string(*summary.ranks) : "-",
          summary.step_median_s ? base::format_seconds(*summary.step_median_s) : "-",
          number(summary.tokens_per_s),
          summary.peak_memory_bytes
              ? base::format_bytes(static_cast<double>(*summary.peak_memory_bytes))
              : "-",
          summary.source.value_or(summary.components.value_or("")),
          summary.status == "completed" ? "" : summary.status,
          fmt::format("{}", fmt::join(summary.tags, ",")),
          summary.note.value_or("")};
}

void print_table(const std::vector<Summary>& records) {
  constexpr int kAlways = Column::kAlways;
  // ID | CREATED | MODEL | PROXY | RANKS | STEP | TOKENS/S | MEMORY | WITH | STATUS | TAGS | NOTE
  static const std::vector<Column> kColumns = {
      {.title = "ID", .least = 8, .importance = kAlways},
      {.title = "CREATED (UTC)", .importance = 70},
      {.title = "MODEL", .least = 19, .importance = kAlways},
      {.title = "PROXY", .least = 5, .importance = kAlways},
      {.title = "RANKS", .right = true, .importance = 30},
      {.title = "STEP", .right = true, .importance = 90},
      {.title = "TOKENS/S", .right = true, .importance = 80},
      {.title = "MEMORY", .right = true, .importance = 50},
      {.title = "WITH", .least = 6, .importance = 45},
      {.title = "STATUS", .least = 6, .importance = 92},
      {.title = "TAGS", .least = 8, .importance = 75},
      {.title = "NOTE", .least = 10, .importance = 20}};
  std::vector<Column> columns = kColumns;
  std::vector<std::vector<std::string>> rows;
  for (const Summary& record : records) rows.push_back(row_of(record));
  // A column that says nothing is no column.
  for (std::size_t i = columns.size(); i-- > 0;) {
    bool says = false;
    for (const auto& row : rows) says = says || !row[i].empty();
    if (says) continue;
    columns.erase(columns.begin() + static_cast<std::ptrdiff_t>(i));
    for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
  }
  fmt::print("{}", format_table(columns, rows, output_width()));
}

void print_json(const RecordStore& store, const std::vector<Summary>& records, std::size_t all) {
  base::OrderedJson document = base::OrderedJson::object();
  document["schema_version"] = 1;
  document["folder"] = store.folder().string();
  document["matching"] = all;
  document["records"] = base::OrderedJson::array();
  for (const Summary& record : records) document["records"].push_back(to_json(record));
  document["problems"] = problems_json(store);
  print_document(document);
}

void list(const ListOptions& options) {
  RecordStore store = open_store();
  Filter filter = filter_of(options.filter);
  std::vector<Summary> records = store.list(filter, options.limit);
  bool cut = options.limit != 0 && records.size() == options.limit;
  std::size_t all = cut ? store.count(filter) : records.size();
  if (options.json) {
    print_json(store, records, all);
    return;
  }
  if (records.empty()) {
    bool none = store.count() == 0;
    fmt::print("{} in {}{}\n", none ? "no records" : "no record fits",
               base::printable(store.folder().string(), 1000),
               none ? "; `ljperf benchmark --model deepspeed/llama3-8b` makes one" : "");
  } else {
    print_table(records);
  }
  if (all > records.size()) {
    fmt::print("{} of {}; --limit 0 shows all\n", records.size(), all);
  }
}

}  // namespace

void add_list(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("list", "List the records, newest first");
  auto options = std::make_shared<ListOptions>();
  add_filter_options(*command, options->filter);
  command->add_option("--limit", options->limit, "At most so many; 0: all")->capture_default_str();
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->footer(kExamples);
  command->callback([&context, options] {
    list(*options);
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::cnp
