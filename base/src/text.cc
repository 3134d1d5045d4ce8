#include "base/text.h"

#include <fmt/format.h>

namespace ljtrain::base {
namespace {

// Bytes of the UTF-8 character that starts `text`; 0 when none does.
std::size_t character_length(std::string_view text) {
  auto first = static_cast<unsigned char>(text.front());
  std::size_t length = first < 0x80                     ? 1
                       : first >= 0xC2 && first < 0xE0  ? 2
                       : first >= 0xE0 && first < 0xF0  ? 3
                       : first >= 0xF0 && first <= 0xF4 ? 4
                                                        : 0;
  if (length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80) {
      return 0;
    }
  }
  // C1 control characters, U+0080 to U+009F: terminals obey these, too.
  bool is_c1 = length == 2 && first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
  return is_c1 ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  std::string clean;
  while (!text.empty()) {
    if (clean.size() >= most) {
      return clean + "...";
    }
    std::size_t length = character_length(text);
    auto first = static_cast<unsigned char>(text.front());
    if (length == 0 || first < 0x20 || first == 0x7F) {
      clean += fmt::format("\\x{:02x}", first);
      length = 1;
    } else {
      clean += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return clean;
}

}  // namespace ljtrain::base
