#include "log_text.h"

#include <charconv>
#include <cmath>

namespace ljtrain::cnp {
namespace {

constexpr std::size_t kLongestLine = std::size_t{64} << 10;
constexpr std::int64_t kLargestCount = 9'007'199'254'740'991;  // 2^53 - 1

// Without "ESC [ ... letter" and NUL.
std::string without_escapes(std::string_view line) {
  std::string plain;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (line[i] < '@' || line[i] > '~')) ++i;
    } else if (line[i] != '\0') {
      plain += line[i];
    }
  }
  return plain;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

void for_each_line(std::string_view text, const std::function<void(std::string_view)>& visit) {
  while (!text.empty()) {
    std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.size() > kLongestLine) continue;
    // A progress bar writes over itself: what counts is after the last carriage return.
    while (line.ends_with('\r')) line.remove_suffix(1);
    if (std::size_t last = line.rfind('\r'); last != std::string_view::npos) {
      line.remove_prefix(last + 1);
    }
    if (line.find_first_of(std::string_view("\x1b\0", 2)) == std::string_view::npos) {
      visit(line);
    } else {
      visit(without_escapes(line));
    }
  }
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::optional<double> leading_number(std::string_view text, bool commas) {
  text = trimmed(text);
  std::string digits;
  if (commas) {
    for (char c : text) {
      if (c == ',') continue;
      if (c == ' ') break;
      digits += c;
    }
    text = digits;
  }
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument) return std::nullopt;
  if (error != std::errc()) return std::nullopt;  // beyond what a double holds
  return value;
}

std::optional<double> number_after(std::string_view line, std::string_view name, bool commas) {
  for (std::size_t at = line.find(name); at != std::string_view::npos;
       at = line.find(name, at + 1)) {
    if (at > 0 && is_word(line[at - 1])) continue;
    return leading_number(line.substr(at + name.size()), commas);
  }
  return std::nullopt;
}

std::optional<std::int64_t> as_count(std::optional<double> value, std::int64_t least) {
  if (!value || !std::isfinite(*value) || std::trunc(*value) != *value) return std::nullopt;
  if (*value < static_cast<double>(least) || *value > static_cast<double>(kLargestCount)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(*value);
}

std::string_view between(std::string_view line, std::string_view before, std::string_view after) {
  std::size_t begin = line.find(before);
  if (begin == std::string_view::npos) return {};
  begin += before.size();
  std::size_t end = line.find(after, begin);
  return end == std::string_view::npos ? std::string_view() : line.substr(begin, end - begin);
}

}  // namespace ljtrain::cnp
