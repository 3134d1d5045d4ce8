#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace ljtrain::base {
namespace {

struct CodePoints {
  std::uint32_t first;
  std::uint32_t last;
};

// What a terminal obeys or nobody can see: C1 controls; Arabic letter mark; zero-width space and the
// direction marks; line and paragraph separators, embeddings and overrides of direction; word joiner
// to directional isolates; byte order mark; tags. (Joiners U+200C and U+200D belong to scripts and
// emoji.)
constexpr std::array<CodePoints, 9> kDeceptive = {{{0x80, 0x9F},
                                                   {0x61C, 0x61C},
                                                   {0x200B, 0x200B},
                                                   {0x200E, 0x200F},
                                                   {0x2028, 0x202E},
                                                   {0x2060, 0x206F},
                                                   {0xFEFF, 0xFEFF},
                                                   {0xFFF9, 0xFFFB},
                                                   {0xE0000, 0xE007F}}};
// Two columns: Unicode's East Asian Width W and F, in blocks, as fmt has them.
constexpr std::array<CodePoints, 12> kWide = {{{0x1100, 0x115F},
                                               {0x2329, 0x232A},
                                               {0x2E80, 0x303E},
                                               {0x3040, 0xA4CF},
                                               {0xAC00, 0xD7A3},
                                               {0xF900, 0xFAFF},
                                               {0xFE10, 0xFE19},
                                               {0xFE30, 0xFE6F},
                                               {0xFF00, 0xFF60},
                                               {0xFFE0, 0xFFE6},
                                               {0x1F300, 0x1F9FF},
                                               {0x20000, 0x3FFFD}}};
// No column of their own: combining marks, joiners, variation selectors.
constexpr std::array<CodePoints, 5> kCombining = {
    {{0x300, 0x36F}, {0x200C, 0x200D}, {0x1AB0, 0x1AFF}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}}};

template <std::size_t count>
bool is_in(const std::array<CodePoints, count>& blocks, std::uint32_t point) {
  return std::any_of(blocks.begin(), blocks.end(), [point](const CodePoints& block) {
    return point >= block.first && point <= block.last;
  });
}

// Of one whole UTF-8 character.
std::uint32_t code_point(std::string_view character) {
  auto first = static_cast<unsigned char>(character.front());
  constexpr std::array<unsigned char, 5> kPayload = {0, 0x7F, 0x1F, 0x0F, 0x07};
  std::uint32_t point = first & kPayload.at(character.size());
  for (char byte : character.substr(1)) {
    point = (point << 6U) | (static_cast<unsigned char>(byte) & 0x3FU);
  }
  return point;
}

bool is_deceptive(std::uint32_t point) { return is_in(kDeceptive, point); }

// Bytes of the UTF-8 character that starts `text`; 0 when none does that may be printed as it is.
std::size_t character_length(std::string_view text) {
  auto first = static_cast<unsigned char>(text.front());
  std::size_t length = first < 0x80                     ? 1
                       : first >= 0xC2 && first < 0xE0  ? 2
                       : first >= 0xE0 && first < 0xF0  ? 3
                       : first >= 0xF0 && first <= 0xF4 ? 4
                                                        : 0;
  if (length == 0 || length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80) {
      return 0;
    }
  }
  return is_deceptive(code_point(text.substr(0, length))) ? 0 : length;
}

// Columns of one character.
std::size_t width_of(std::string_view character) {
  std::uint32_t point = code_point(character);
  return is_in(kCombining, point) ? 0 : is_in(kWide, point) ? 2 : 1;
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

std::size_t display_width(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    std::size_t length = std::max<std::size_t>(character_length(text), 1);
    columns += width_of(text.substr(0, length));
    text.remove_prefix(length);
  }
  return columns;
}

std::string fitted(std::string_view text, std::size_t columns) {
  constexpr std::size_t kBytesPerColumn =
      16;  // more than any sane text has, combining marks and all
  std::string clean = printable(text, columns * kBytesPerColumn);
  if (display_width(clean) <= columns) return clean;
  std::size_t used = 0;
  std::size_t end = 0;
  for (std::string_view rest = clean; !rest.empty();) {
    std::size_t length = std::max<std::size_t>(character_length(rest), 1);
    used += width_of(rest.substr(0, length));
    if (used + 1 > columns) break;
    end += length;
    rest.remove_prefix(length);
  }
  return clean.substr(0, end) + "…";
}

}  // namespace ljtrain::base
