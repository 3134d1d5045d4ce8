#include "annotation_file.h"

#include <algorithm>

#include "base/errors.h"
#include "base/json.h"

namespace ljtrain::cnp {
namespace {

using base::Json;

constexpr int kAnnotationSchemaVersion = 1;
constexpr std::uintmax_t kLargestAnnotation = std::uintmax_t{16} << 20;

}  // namespace

Annotation read_annotation(const std::filesystem::path& file) {
  base::JsonDocument document = base::JsonDocument::read(file, kLargestAnnotation);
  const Json& root = document.root();
  const Json version = root.is_object() ? root.value("schema_version", Json()) : Json();
  if (version.is_number() && version.get<double>() > kAnnotationSchemaVersion) {
    throw base::user_error(
        "{}: of a later version of ljtrain (schema {}, this one reads {}): upgrade it",
        document.where(Json::json_pointer("/schema_version")), version.dump(),
        kAnnotationSchemaVersion);
  }
  Annotation annotation;
  try {
    annotation.tags = root.at("tags").get<std::vector<std::string>>();
    if (const Json& note = root.at("note"); !note.is_null())
      annotation.note = note.get<std::string>();
  } catch (const Json::exception&) {
    throw base::user_error("{}: must have `tags`, a list of strings, and `note`, a string or null",
                           document.name());
  }
  std::sort(annotation.tags.begin(), annotation.tags.end());
  annotation.tags.erase(std::unique(annotation.tags.begin(), annotation.tags.end()),
                        annotation.tags.end());
  return annotation;
}

}  // namespace ljtrain::cnp
