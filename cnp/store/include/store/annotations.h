// Tags and notes: what people say about records, which themselves never change. They are files, too
// (FOLDER/annotations/RECORD_ID.json), so that an index that is lost takes none of them along.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ljtrain::cnp {

struct Annotation {
  std::vector<std::string> tags;  // sorted, each once
  std::string note;               // empty: none
  bool operator==(const Annotation&) const = default;
};

// A record has at most so many.
inline constexpr std::size_t kMostTags = 100;
inline constexpr std::size_t kLongestTag = 64;       // bytes
inline constexpr std::size_t kLongestNote = 65'536;  // bytes

// UserError unless `tag` is 1 to 64 letters, digits, '.', '_', '-', '+', ':' or '@', not `latest`, and
// no id or file (those end in .json).
void require_tag(std::string_view tag);
// UserError unless `note` is at most 64 KiB of UTF-8.
void require_note(std::string_view note);

// UserError with file, line and key when it is no such file, or of a later schema.
Annotation read_annotation(const std::filesystem::path& file);

// Reads, changes and writes a record's annotation under a lock, so that no two processes' changes
// lose each other; the file is replaced whole or not at all. An empty annotation removes the file.
// Returns what is there afterwards. UserError when it cannot be read or written.
Annotation change_annotation(const std::filesystem::path& records_folder, std::string_view id,
                             const std::function<void(Annotation&)>& change);

}  // namespace ljtrain::cnp
