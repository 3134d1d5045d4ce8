#include "launcher/yaml.h"

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"

namespace ljtrain::ljperf {
namespace {

using base::OrderedJson;

constexpr std::size_t kIndent = 2;

// The code point at `at`, which moves behind it. Throws for bytes that are no UTF-8.
char32_t next_code_point(const std::string& text, std::size_t& at) {
  auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text.at(i)); };
  unsigned char first = byte(at);
  std::size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : 4;
  char32_t point = length == 1 ? first : first & (0x7fU >> length);
  bool valid = first < 0x80 || (first >= 0xc2 && first <= 0xf4);
  for (std::size_t i = 1; valid && i < length; ++i) {
    valid = at + i < text.size() && byte(at + i) >> 6 == 2;
    point = valid ? point << 6 | (byte(at + i) & 0x3fU) : point;
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (!valid || point < kLeast[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) {
    throw base::user_error("`{}` is not UTF-8, so a manifest cannot hold it",
                           base::printable(text));
  }
  at += length;
  return point;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (std::size_t at = 0; at < text.size();) {
    std::size_t start = at;
    char32_t point = next_code_point(text, at);
    if (point == '"' || point == '\\') {
      result += '\\';
      result += static_cast<char>(point);
    } else if (point == '\n') {
      result += "\\n";
    } else if (point >= 0x20 && point < 0x7f) {
      result += static_cast<char>(point);
    } else if (point < 0xa0 || point == 0xfeff || (point >= 0x2028 && point <= 0x202e) ||
               (point >= 0xfffe && point <= 0xffff)) {
      // Not printable to YAML, or able to reorder what a reader sees.
      result += point < 0x100 ? fmt::format("\\x{:02x}", static_cast<unsigned>(point))
                              : fmt::format("\\u{:04x}", static_cast<unsigned>(point));
    } else {
      result += text.substr(start, at - start);
    }
  }
  return result + "\"";
}

// Keys of Kubernetes stay bare; any other is quoted.
std::string key_text(const std::string& key) {
  static const std::vector<std::string> kWords{"true", "false", "null", "yes", "no",
                                               "on",   "off",   "y",    "n"};
  std::string low = key;
  std::transform(low.begin(), low.end(), low.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  bool bare =
      !key.empty() && std::isalpha(static_cast<unsigned char>(key.front())) != 0 &&
      std::find(kWords.begin(), kWords.end(), low) == kWords.end() &&
      std::all_of(key.begin(), key.end(), [](unsigned char c) {
        return (c < 0x80 && std::isalnum(c) != 0) || c == '.' || c == '/' || c == '-' || c == '_';
      });
  return bare ? key : quoted(key);
}

bool is_nested(const OrderedJson& value) { return value.is_structured() && !value.empty(); }

std::string scalar(const OrderedJson& value) {
  return value.is_string()   ? quoted(value.get<std::string>())
         : value.is_object() ? "{}"
         : value.is_array()  ? "[]"
                             : value.dump();
}

// Writes `value`, whose first line begins at the current column; others are indented by `indent`.
void write(std::string& out, const OrderedJson& value, std::size_t indent) {
  if (!is_nested(value)) {
    out += scalar(value) + "\n";
    return;
  }
  bool first = true;
  std::string margin(indent, ' ');
  if (value.is_array()) {
    for (const OrderedJson& item : value) {
      out += (first ? "" : margin) + "- ";
      write(out, item, indent + kIndent);
      first = false;
    }
    return;
  }
  for (const auto& [key, item] : value.items()) {
    out += (first ? "" : margin) + key_text(key) + ":";
    if (is_nested(item)) {
      out += "\n" + std::string(indent + kIndent, ' ');
    } else {
      out += " ";
    }
    write(out, item, indent + kIndent);
    first = false;
  }
}

}  // namespace

std::string to_yaml(const OrderedJson& document) {
  std::string out;
  write(out, document, 0);
  return out;
}

std::string to_yaml(const std::vector<OrderedJson>& documents) {
  std::string out;
  for (const OrderedJson& document : documents) {
    out += (out.empty() ? "" : "---\n") + to_yaml(document);
  }
  return out;
}

}  // namespace ljtrain::ljperf
