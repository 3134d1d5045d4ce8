// JSON files as users write them: read whole, with errors that name file, line and key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ljtrain::base {

using Json = nlohmann::json;
// Keeps the order of keys: for documents that people read.
using OrderedJson = nlohmann::ordered_json;

// A JSON document together with its text, so that a complaint about a value can name its line.
class JsonDocument {
 public:
  // Throws UserError: "FILE:LINE:COLUMN: what the parser says". `name` stands for the file in
  // messages.
  static JsonDocument parse(std::string text, std::string name);
  // Reads at most `max_bytes`; throws UserError when the file is missing, unreadable, too large or
  // malformed.
  static JsonDocument read(const std::filesystem::path& file,
                           std::uintmax_t max_bytes = std::uintmax_t{64} << 20);

  const Json& root() const { return root_; }
  const std::string& name() const { return name_; }
  // "FILE:LINE: key `a.b`" for a JSON pointer such as /a/b; only "FILE: key `a.b`" when it is not
  // in the text.
  std::string where(const Json::json_pointer& pointer) const;

 private:
  JsonDocument(Json root, std::string text, std::string name);

  Json root_;
  std::string text_;
  std::string name_;
};

// 1-based line of the value that `pointer` names in `text` (valid JSON), 0 when it is absent.
std::size_t line_of(std::string_view text, const Json::json_pointer& pointer);

// Writes the whole file or nothing: a temporary file beside it, fsync, rename. Throws UserError
// when it cannot be written.
void write_file_atomically(const std::filesystem::path& file, std::string_view content);

}  // namespace ljtrain::base
