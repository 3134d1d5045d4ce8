// cnp import: records of other machines, and other programs' results.
#include "importers/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/errors.h"
#include "base/process.h"
#include "base/text.h"
#include "cnp/record_file.h"
#include "commands.h"
#include "open_store.h"
#include "store/annotations.h"

namespace ljtrain::cnp {
namespace {

namespace fs = std::filesystem;
using base::OrderedJson;

constexpr const char* kExamples = R"(Examples:
  cnp import records.tar
  cnp import train.log --model llama3-8b --precision bf16
  cnp import megatron.log --ranks 64 --tag peer
  cnp import output/trainer_state.json --model qwen3-8b --ranks 8
  cnp import all_reduce.json
)";
constexpr auto kTarPatience = std::chrono::minutes(10);

struct ImportOptions {
  std::vector<std::string> files;
  std::string format = "auto";
  StatedFacts facts;
  std::vector<std::string> tags;
  bool again = false;
  bool json = false;
};

// What became of one file.
struct Outcome {
  std::string file;
  std::vector<std::string> imported;  // ids
  std::vector<std::string> known;     // ids that were there already
  std::vector<std::string> notes;
};

class Importer {
 public:
  Importer(const ImportOptions& options, RecordStore& store) : options_(&options), store_(&store) {}

  Outcome import(const fs::path& file) {
    Outcome outcome{.file = file.string(), .imported = {}, .known = {}, .notes = {}};
    ImportSource source = read_import_source(file);
    if (is_archive(source.text)) {
      import_archive(file, outcome);
    } else if (std::optional<base::JsonDocument> document = as_records(source)) {
      import_json(*document, outcome);
    } else {
      import_foreign(source, outcome);
    }
    for (const std::string& id : outcome.imported) add_tags(id);
    return outcome;
  }

 private:
  static bool is_archive(std::string_view text) {
    constexpr std::size_t kMagicAt = 257;  // POSIX.1-1988, ustar header
    return text.starts_with("\x1f\x8b") ||
           (text.size() > kMagicAt && text.substr(kMagicAt).starts_with("ustar"));
  }

  // The document when it is a record or what `cnp export` wrote.
  std::optional<base::JsonDocument> as_records(const ImportSource& source) const {
    if (options_->format != "auto") return std::nullopt;
    std::size_t first = source.text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos || source.text[first] != '{') return std::nullopt;
    bool may_be = source.text.find("\"record_id\"") != std::string::npos &&
                  source.text.find("\"schema_version\"") != std::string::npos;
    if (!may_be) return std::nullopt;
    return base::JsonDocument::parse(source.text, source.name);
  }

  void import_json(const base::JsonDocument& document, Outcome& outcome) {
    const base::Json& root = document.root();
    if (!root.contains("records")) {
      add(OrderedJson(root), outcome);
      return;
    }
    if (!root["records"].is_array()) {
      throw base::user_error("{}: key `records`: must be a list of records", document.name());
    }
    for (const base::Json& record : root["records"]) add(OrderedJson(record), outcome);
    const base::Json annotations = root.value("annotations", base::Json::object());
    for (const auto& [id, annotation] : annotations.items()) annotate(id, annotation, outcome);
  }

  void add(OrderedJson record, Outcome& outcome) {
    if (record.is_object()) record.erase("annotation");  // what `cnp show --json` added
    bool named =
        record.is_object() && record.contains("record_id") && record["record_id"].is_string();
    std::string id = named ? record["record_id"].get<std::string>() : "";
    if (named && is_there(id, record)) {
      outcome.known.push_back(id);
      return;
    }
    add_document(store_->folder(), record);
    outcome.imported.push_back(id);
  }

  // UserError when another record has that id.
  bool is_there(const std::string& id, const OrderedJson& record) const {
    require_record_id(id);
    std::error_code code;
    fs::path file = store_->file_of(id);
    if (!fs::exists(file, code)) return false;
    if (read_record_document(file).root() == base::Json(record)) return true;
    throw base::user_error("{}: a record with this id and other content is there already", id);
  }

  // Tags and notes that are there stay.
  void annotate(const std::string& id, const base::Json& annotation, const Outcome& outcome) {
    bool ours =
        std::find(outcome.imported.begin(), outcome.imported.end(), id) != outcome.imported.end();
    if (!ours || !annotation.is_object()) return;
    const base::Json tags = annotation.value("tags", base::Json::array());
    const base::Json note = annotation.value("note", base::Json());
    std::vector<std::string> names;
    for (const base::Json& tag : tags) {
      if (!tag.is_string()) continue;
      names.push_back(tag.get<std::string>());
      require_tag(names.back());
    }
    if (note.is_string()) require_note(note.get<std::string>());
    change_annotation(store_->folder(), id, [&](Annotation& now) {
      now.tags.insert(now.tags.end(), names.begin(), names.end());
      if (now.note.empty() && note.is_string()) now.note = note.get<std::string>();
    });
  }

  void import_archive(const fs::path& file, Outcome& outcome);

  void import_foreign(const ImportSource& source, Outcome& outcome) {
    Filter same;
    same.source_digest = digest_of(source.text);
    std::vector<Summary> earlier = store_->list(same, 1);
    if (!earlier.empty() && !options_->again) {
      outcome.known.push_back(earlier.front().id);
      outcome.notes.emplace_back("imported earlier; --again imports it once more");
      return;
    }
    OrderedJson document = import_document(source, options_->format, options_->facts);
    add_document(store_->folder(), document);
    outcome.imported.push_back(document["record_id"].get<std::string>());
    for (const OrderedJson& note : document["source"]["notes"]) {
      outcome.notes.push_back(note.get<std::string>());
    }
  }

  void add_tags(const std::string& id) {
    if (options_->tags.empty()) return;
    change_annotation(store_->folder(), id, [this](Annotation& annotation) {
      annotation.tags.insert(annotation.tags.end(), options_->tags.begin(), options_->tags.end());
    });
  }

  const ImportOptions* options_;
  RecordStore* store_;
};

// A folder that is gone with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "cnp-import-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw base::run_error("{}: cannot be made: {}", name, std::strerror(errno));
    }
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code code;
    fs::remove_all(path_, code);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<fs::path> regular_json_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    bool regular = fs::is_regular_file(entry.symlink_status(code));
    if (regular && entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void Importer::import_archive(const fs::path& file, Outcome& outcome) {
  TemporaryFolder folder;
  base::SpawnOptions tar;
  tar.argv = {"tar",
              "--extract",
              "--file",
              fs::absolute(file).string(),
              "--directory",
              folder.path().string(),
              "--no-same-owner",
              "--no-same-permissions",
              "--force-local"};
  tar.environment = base::current_environment();
  base::Captured done = base::run_captured(tar, "", kTarPatience);
  if (!done.status.ok() || done.timed_out) {
    throw base::user_error("{}: tar cannot unpack it: {}", base::printable(file.string(), 1000),
                           base::printable(done.errors.substr(0, done.errors.find('\n')), 500));
  }
  for (const fs::path& record : regular_json_files(folder.path())) {
    add(OrderedJson(read_record_document(record).root()), outcome);
  }
  for (const fs::path& annotation : regular_json_files(folder.path() / "annotations")) {
    annotate(annotation.stem().string(), base::JsonDocument::read(annotation).root(), outcome);
  }
  if (outcome.imported.empty() && outcome.known.empty()) {
    throw base::user_error("{}: holds no record", base::printable(file.string(), 1000));
  }
}

void print_outcomes(const std::vector<Outcome>& outcomes, bool json) {
  if (json) {
    OrderedJson list = OrderedJson::array();
    for (const Outcome& outcome : outcomes) {
      list.push_back({{"file", outcome.file},
                      {"imported", outcome.imported},
                      {"known", outcome.known},
                      {"notes", outcome.notes}});
    }
    print_document({{"schema_version", 1}, {"files", list}});
    return;
  }
  constexpr std::size_t kShown = 20;
  for (const Outcome& outcome : outcomes) {
    std::string file = base::printable(outcome.file, 1000);
    for (std::size_t i = 0; i < std::min(outcome.imported.size(), kShown); ++i) {
      fmt::print("imported {} from {}\n", outcome.imported[i], file);
    }
    if (outcome.imported.size() > kShown) {
      fmt::print("... and {} more from {}\n", outcome.imported.size() - kShown, file);
    }
    if (!outcome.known.empty()) {
      fmt::print("{}: there already: {}\n", file,
                 outcome.known.size() == 1 ? outcome.known.front()
                                           : fmt::format("{} records", outcome.known.size()));
    }
    for (const std::string& note : outcome.notes) fmt::print("  note: {}\n", base::printable(note));
  }
}

void import_files(const ImportOptions& options) {
  for (const std::string& tag : options.tags) require_tag(tag);
  RecordStore store = open_store();
  Importer importer(options, store);
  std::vector<Outcome> outcomes;
  for (const std::string& file : options.files) outcomes.push_back(importer.import(file));
  print_outcomes(outcomes, options.json);
}

}  // namespace

void add_import(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand(
      "import",
      "Take in records, or logs of torchtitan and Megatron-LM, trainer_state.json, "
      "nccl-tests -J");
  auto options = std::make_shared<ImportOptions>();
  StatedFacts& facts = options->facts;
  command->add_option("file", options->files, "Files of any of these kinds")->required();
  command
      ->add_option("--format", options->format,
                   "auto, torchtitan, megatron, trainer_state or nccl-tests")
      ->capture_default_str();
  command->add_option("--model", facts.model, "The model, where the file does not say");
  command->add_option("--engine", facts.engine, "The engine");
  command->add_option("--device", facts.device, "cpu or cuda");
  command->add_option("--precision", facts.precision, "bf16, fp16 or fp32");
  auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  command->add_option("--ranks", facts.ranks, "Ranks")->check(positive);
  command->add_option("--sequence-length", facts.sequence_length, "Tokens")->check(positive);
  command->add_option("--micro-batch", facts.micro_batch, "Sequences")->check(positive);
  command->add_option("--gradient-accumulation", facts.gradient_accumulation, "Micro-batches")
      ->check(positive);
  command->add_option("--tag", options->tags, "Tags for what is imported");
  command->add_flag("--again", options->again, "Also what was imported earlier");
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->footer(kExamples);
  command->callback([&context, options] {
    import_files(*options);
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::cnp
