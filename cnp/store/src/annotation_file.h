// Tags and the note of a record: one JSON file each, beside the records, which never change.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ljtrain::cnp {

// The folder of annotations within the folder of records.
inline constexpr const char* kAnnotationsFolder = "annotations";

struct Annotation {
  std::vector<std::string> tags;  // sorted, each once
  std::string note;               // empty: none
};

// UserError with file, line and key when it is no such file, or of a later schema.
Annotation read_annotation(const std::filesystem::path& file);

}  // namespace ljtrain::cnp
