#include "launcher/shell.h"

#include <algorithm>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

// Never special, wherever they stand in a word. '=' would make an assignment of a first word, and is
// plain in an option only.
bool is_plain(char c, bool option) {
  constexpr std::string_view kPlain = "_-./:,@%+";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kPlain.find(c) != std::string_view::npos || (option && c == '=');
}

}  // namespace

std::string shell_quote(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) {
    throw base::user_error("an argument holds a NUL byte, which no program can be given");
  }
  bool plain = std::all_of(text.begin(), text.end(),
                           [&](char c) { return is_plain(c, text.starts_with("--")); });
  if (plain && !text.empty()) {
    return std::string(text);
  }
  std::string quoted = "'";
  for (char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string shell_join(const std::vector<std::string>& argv) {
  std::string line;
  for (const std::string& word : argv) {
    line += (line.empty() ? "" : " ") + shell_quote(word);
  }
  return line;
}

}  // namespace ljtrain::ljperf
