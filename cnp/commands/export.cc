// cnp export: records for other programs and other machines.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "base/errors.h"
#include "base/process.h"
#include "base/text.h"
#include "cnp/record_file.h"
#include "commands.h"
#include "filter_options.h"
#include "open_store.h"
#include "store/annotations.h"
#include "store/resolve.h"

namespace ljtrain::cnp {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExamples = R"(Examples:
  cnp export baseline latest > two.json
  cnp export --model deepspeed/llama3-8b --format csv --output llama.csv
  cnp export --since 30d --format tar --output records.tar
  cnp import records.tar
)";
constexpr auto kTarPatience = std::chrono::minutes(10);

struct ExportOptions {
  std::vector<std::string> records;
  FilterOptions filter;
  std::string format = "json";
  std::string output;
  bool json = false;
};

// The chosen records, newest first, each once.
std::vector<Summary> chosen(const RecordStore& store, const ExportOptions& options) {
  std::vector<Summary> all = store.list(filter_of(options.filter));
  if (options.records.empty()) return all;
  std::set<std::string> wanted;
  for (const std::string& selector : options.records) {
    for (const fs::path& file : resolve_records(store, selector)) {
      std::string id = file.stem().string();
      if (!store.find(id)) {
        throw base::user_error("{}: is no record of {}", base::printable(file.string(), 1000),
                               base::printable(store.folder().string(), 1000));
      }
      wanted.insert(id);
    }
  }
  std::erase_if(all, [&](const Summary& summary) { return !wanted.contains(summary.id); });
  return all;
}

std::string json_text(const RecordStore& store, const std::vector<Summary>& records) {
  base::OrderedJson document{{"schema_version", 1},
                             {"records", base::OrderedJson::array()},
                             {"annotations", base::OrderedJson::object()}};
  for (const Summary& summary : records) {
    base::JsonDocument record = read_record_document(store.file_of(summary.id));
    document["records"].push_back(base::OrderedJson(record.root()));
    if (summary.tags.empty() && !summary.note) continue;
    document["annotations"][summary.id] = {
        {"tags", summary.tags},
        {"note", summary.note ? base::OrderedJson(*summary.note) : base::OrderedJson(nullptr)}};
  }
  return document.dump(1, ' ', false, base::OrderedJson::error_handler_t::replace) + "\n";
}

// RFC 4180, and a line a record: what a terminal obeys, line breaks among it, is written as \xNN. A
// cell that a spreadsheet would take for a formula starts with an apostrophe instead.
std::string csv_cell(std::string text) {
  if (!text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos) {
    text.insert(0, "'");
  }
  text = base::printable(text, std::numeric_limits<std::size_t>::max());
  if (text.find_first_of("\",") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string csv_value(const base::OrderedJson& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return csv_cell(value.get<std::string>());
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const base::OrderedJson& part : value) {
      parts.push_back(part.is_string() ? part.get<std::string>() : part.dump());
    }
    return csv_cell(fmt::format("{}", fmt::join(parts, " ")));
  }
  return value.dump();
}

std::string csv_text(const std::vector<Summary>& records) {
  std::string text;
  for (const Summary& summary : records) {
    base::OrderedJson row = to_json(summary);
    base::OrderedJson step = row["step_time_s"];
    row.erase("step_time_s");
    row["step_median_s"] = step["median"];
    row["step_ci95_low_s"] = step["ci95"].is_null() ? step["ci95"] : step["ci95"][0];
    row["step_ci95_high_s"] = step["ci95"].is_null() ? step["ci95"] : step["ci95"][1];
    std::string names;
    std::string cells;
    for (const auto& [name, value] : row.items()) {
      names += (names.empty() ? "" : ",") + name;
      cells += (cells.empty() ? "" : ",") + csv_value(value);
    }
    if (text.empty()) text = names + "\r\n";
    text += cells + "\r\n";
  }
  return text;
}

// An archive of the files themselves, by tar, written beside its name and then renamed.
void write_tar(const RecordStore& store, const std::vector<Summary>& records,
               const fs::path& output) {
  std::string names;
  std::error_code code;
  for (const Summary& summary : records) {
    names += summary.id + ".json" + '\0';
    fs::path annotation = fs::path("annotations") / (summary.id + ".json");
    if (fs::exists(store.folder() / annotation, code)) names += annotation.string() + '\0';
  }
  fs::path whole = fs::absolute(output);
  fs::path part = whole.string() + ".part";
  base::SpawnOptions tar;
  tar.argv = {"tar",          "--create",
              "--file",       part.string(),
              "--directory",  store.folder().string(),
              "--null",       "--verbatim-files-from",
              "--files-from", "-"};
  tar.environment = base::current_environment();
  base::Captured done = base::run_captured(tar, names, kTarPatience);
  if (!done.status.ok() || done.timed_out) {
    fs::remove(part, code);
    throw base::run_error("tar could not write {}: {}", base::printable(whole.string(), 1000),
                          base::printable(done.errors.substr(0, done.errors.find('\n')), 500));
  }
  fs::rename(part, whole, code);
  if (code) {
    throw base::user_error("{}: cannot be written: {}", base::printable(whole.string(), 1000),
                           code.message());
  }
}

void export_records(const ExportOptions& options) {
  if (options.format != "json" && options.format != "csv" && options.format != "tar") {
    throw base::user_error("--format {}: must be json, csv or tar",
                           base::printable(options.format));
  }
  if (options.output.empty() && (options.format == "tar" || options.json)) {
    throw base::UserError(options.json ? "--json tells of a written file: name it with --output"
                                       : "--format tar: name the file with --output");
  }
  RecordStore store = open_store();
  std::vector<Summary> records = chosen(store, options);
  if (records.empty()) throw base::UserError("no record fits; `cnp list` shows them");
  if (options.format == "tar") {
    write_tar(store, records, options.output);
  } else {
    std::string text = options.format == "csv" ? csv_text(records) : json_text(store, records);
    if (options.output.empty()) {
      print_text(text);
      return;
    }
    base::write_file_atomically(options.output, text);
  }
  if (options.json) {
    print_document({{"schema_version", 1},
                    {"file", options.output},
                    {"format", options.format},
                    {"records", records.size()}});
  } else {
    fmt::print("{} records written to {}\n", records.size(), base::printable(options.output, 1000));
  }
}

}  // namespace

void add_export(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("export", "Write records as JSON, CSV or a tar archive");
  auto options = std::make_shared<ExportOptions>();
  command->add_option("record", options->records,
                      "Ids, tags, latest: these; none: all that fit the options");
  add_filter_options(*command, options->filter);
  command->add_option("--format", options->format, "json, csv (a line a record) or tar (the files)")
      ->capture_default_str();
  command->add_option("--output", options->output, "This file, not standard output");
  command->add_flag("--json", options->json, "With --output: say what was written as JSON");
  command->footer(kExamples);
  command->callback([&context, options] {
    export_records(*options);
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::cnp
