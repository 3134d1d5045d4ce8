#include "image/version.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace ljtrain::image {
namespace {

constexpr std::size_t kMostParts = 6;
constexpr std::size_t kMostDigits = 9;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string Version::text() const { return fmt::format("{}", fmt::join(parts_, ".")); }

std::strong_ordering Version::operator<=>(const Version& other) const {
  for (std::size_t i = 0; i < std::max(parts_.size(), other.parts_.size()); ++i) {
    if (part(i) != other.part(i)) {
      return part(i) <=> other.part(i);
    }
  }
  return std::strong_ordering::equal;
}

std::optional<Version> parse_version(std::string_view text) {
  std::vector<int> parts;
  while (true) {
    std::size_t digits = 0;
    while (digits < text.size() && is_digit(text[digits])) {
      ++digits;
    }
    if (digits == 0 || digits > kMostDigits || parts.size() == kMostParts) {
      return std::nullopt;
    }
    int value = 0;
    std::from_chars(text.data(), text.data() + digits, value);
    parts.push_back(value);
    text.remove_prefix(digits);
    if (text.empty()) {
      return Version(parts);
    }
    if (text.front() != '.') {
      return std::nullopt;
    }
    text.remove_prefix(1);
  }
}

std::optional<Version> find_version(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (!is_digit(text[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && (is_digit(text[end]) || text[end] == '.')) {
      ++end;
    }
    std::string_view word = text.substr(at, end - at);
    while (word.ends_with('.')) {
      word.remove_suffix(1);
    }
    // Not the 64 of x86_64, nor a number glued to a word.
    bool alone = at == 0 || text[at - 1] == ' ' || text[at - 1] == '\t' || text[at - 1] == '.';
    std::optional<Version> version = parse_version(word);
    if (alone && version.has_value() && version->size() > 1) {
      return version;
    }
    at = end;
  }
  return std::nullopt;
}

}  // namespace ljtrain::image
