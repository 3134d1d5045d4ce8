#include "store/annotations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "annotation_file.h"
#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "index_file.h"

namespace ljtrain::cnp {
namespace {

namespace fs = std::filesystem;
using base::Json;
using base::OrderedJson;

constexpr int kAnnotationSchemaVersion = 1;
constexpr std::uintmax_t kLargestAnnotation = std::uintmax_t{16} << 20;

void write_annotation(const fs::path& file, std::string_view id, const Annotation& annotation) {
  OrderedJson json{
      {"schema_version", kAnnotationSchemaVersion},
      {"record_id", id},
      {"tags", annotation.tags},
      {"note", annotation.note.empty() ? OrderedJson(nullptr) : OrderedJson(annotation.note)}};
  base::write_file_atomically(file, json.dump(2) + "\n");
}

void tidy(Annotation& annotation) {
  std::sort(annotation.tags.begin(), annotation.tags.end());
  annotation.tags.erase(std::unique(annotation.tags.begin(), annotation.tags.end()),
                        annotation.tags.end());
}

bool is_tag_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("._-+:@").find(c) != std::string_view::npos;
}

}  // namespace

void require_tag(std::string_view tag) {
  bool fits = !tag.empty() && tag.size() <= kLongestTag && tag.front() != '-' &&
              !tag.ends_with(".json") && std::all_of(tag.begin(), tag.end(), is_tag_letter);
  if (!fits) {
    throw base::user_error(
        "tag `{}`: must be 1 to {} letters, digits or . _ - + : @, not begin with - and not end in "
        ".json; longer text is for `cnp note`",
        base::printable(tag, kLongestTag), kLongestTag);
  }
  if (tag == "latest") throw base::UserError("tag `latest`: is what the newest record is called");
}

void require_note(std::string_view note) {
  if (note.size() > kLongestNote) {
    throw base::user_error("the note has {} bytes; at most {} are kept", note.size(), kLongestNote);
  }
  try {
    (void)Json(note).dump();
  } catch (const Json::exception&) {
    throw base::UserError("the note is not UTF-8 text");
  }
}

Annotation read_annotation(const fs::path& file) {
  base::JsonDocument document = base::JsonDocument::read(file, kLargestAnnotation);
  const Json& root = document.root();
  const Json version = root.is_object() ? root.value("schema_version", Json()) : Json();
  if (version.is_number() && version.get<double>() > kAnnotationSchemaVersion) {
    throw base::user_error(
        "{}: a later version of ljtrain wrote this (schema {}, this one reads {}): upgrade it",
        document.where(Json::json_pointer("/schema_version")), version.dump(),
        kAnnotationSchemaVersion);
  }
  Annotation annotation;
  try {
    annotation.tags = root.at("tags").get<std::vector<std::string>>();
    const Json& note = root.at("note");
    if (!note.is_null()) annotation.note = note.get<std::string>();
  } catch (const Json::exception&) {
    throw base::user_error(
        "{}: must have `tags`, a list of strings, and `note`, a string or null; mend or delete it",
        document.name());
  }
  tidy(annotation);
  return annotation;
}

Annotation change_annotation(const fs::path& records_folder, std::string_view id,
                             const std::function<void(Annotation&)>& change) {
  fs::path folder = records_folder / kAnnotationsFolder;
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) {
    throw base::user_error("{}: cannot make this folder: {}",
                           base::printable(folder.string(), 1000), code.message());
  }
  base::UniqueFd lock;
  try {
    lock = lock_file(folder / ".lock", true);
  } catch (const sqlite::Error& error) {
    throw base::user_error("{}", error.what());
  }
  fs::path file = folder / fmt::format("{}.json", id);
  bool exists = fs::exists(file, code);
  Annotation before = exists ? read_annotation(file) : Annotation();
  Annotation after = before;
  change(after);
  tidy(after);
  if (after.tags.size() > kMostTags) {
    throw base::user_error("record {} would have {} tags; at most {} are kept", id,
                           after.tags.size(), kMostTags);
  }
  if (after == before) return after;
  if (after == Annotation()) {
    fs::remove(file, code);
    if (code) throw base::user_error("{}: cannot be removed: {}", file.string(), code.message());
  } else {
    write_annotation(file, id, after);
  }
  return after;
}

}  // namespace ljtrain::cnp
