#include "comm/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "base/errors.h"
#include "base/units.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::uint64_t kLargest = std::uint64_t{16} << 30;
constexpr std::size_t kMost = 500;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

std::uint64_t one_size(const std::string& text, const std::string& whole) {
  std::uint64_t bytes = 0;
  try {
    bytes = base::parse_bytes(text);
  } catch (const base::UserError&) {
    throw base::user_error("--sizes {}: `{}` is not a size; write 8:64MiB:x2 or 8,1KiB,1MiB", whole,
                           text);
  }
  if (bytes < 1 || bytes > kLargest) {
    throw base::user_error("--sizes {}: {} must be between 1 byte and 16GiB", whole, text);
  }
  return bytes;
}

// The size after `size` by "x2", "+1MiB" or "1MiB".
std::uint64_t next_size(std::uint64_t size, const std::string& step, const std::string& whole) {
  if (step.starts_with('x') || step.starts_with('X')) {
    double factor = 0;
    const char* end = step.data() + step.size();
    auto [rest, error] = std::from_chars(step.data() + 1, end, factor);
    if (error != std::errc() || rest != end || !(factor > 1) || factor > 1e9) {
      throw base::user_error("--sizes {}: the factor {} must be a number above 1, as in 8:64MiB:x2",
                             whole, step);
    }
    return std::max(size + 1, static_cast<std::uint64_t>(static_cast<double>(size) * factor));
  }
  return size + one_size(step.starts_with('+') ? step.substr(1) : step, whole);
}

void add_part(const std::string& part, const std::string& whole,
              std::vector<std::uint64_t>& sizes) {
  std::vector<std::string> bounds = split(part, ':');
  if (bounds.empty() || bounds.size() > 3 || part.ends_with(':')) {
    throw base::user_error(
        "--sizes {}: `{}` is not a size or a range; write 8:64MiB:x2 or 8,1KiB,1MiB", whole, part);
  }
  std::uint64_t first = one_size(bounds[0], whole);
  if (bounds.size() == 1) {
    sizes.push_back(first);
    return;
  }
  std::uint64_t last = one_size(bounds[1], whole);
  if (last < first) {
    throw base::user_error("--sizes {}: `{}` ends before it begins", whole, part);
  }
  std::string step = bounds.size() == 3 ? bounds[2] : "x2";
  for (std::uint64_t size = first; size <= last; size = next_size(size, step, whole)) {
    sizes.push_back(size);
    if (sizes.size() > kMost) {
      throw base::user_error("--sizes {}: more than {} sizes; use a larger step", whole, kMost);
    }
  }
}

}  // namespace

std::vector<std::uint64_t> parse_sizes(const std::string& text) {
  std::vector<std::uint64_t> sizes;
  for (const std::string& part : split(text, ',')) {
    add_part(part, text, sizes);
  }
  if (sizes.empty()) {
    throw base::user_error("--sizes: is empty; write 8:64MiB:x2 or 8,1KiB,1MiB");
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::string exact_bytes(std::uint64_t bytes) {
  static constexpr std::array kUnits{"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && bytes % 1024 == 0 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

}  // namespace ljtrain::ljperf
