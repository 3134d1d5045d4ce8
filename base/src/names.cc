#include "base/names.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace ljtrain::base {
namespace {

// Longer names are not worth comparing letter by letter.
constexpr std::size_t kLongestName = 64;

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: two letters back (for swaps), one letter back, and this letter's.
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::vector<std::string_view> nearest_names(std::string_view name,
                                            std::span<const std::string_view> names,
                                            std::size_t most) {
  // Those that contain the name, or lie in it, come first.
  std::vector<std::tuple<bool, std::size_t, std::string_view>> found;
  if (name.empty() || name.size() > kLongestName) {
    return {};
  }
  for (std::string_view known : names) {
    std::size_t distance = edit_distance(name, known);
    bool contains =
        known.find(name) != std::string_view::npos || name.find(known) != std::string_view::npos;
    if (contains || distance <= std::max(name.size(), known.size()) / 2) {
      found.emplace_back(!contains, distance, known);
    }
  }
  std::ranges::sort(found);
  std::vector<std::string_view> nearest;
  for (const auto& [apart, distance, known] : found) {
    if (nearest.size() < most) {
      nearest.push_back(known);
    }
  }
  return nearest;
}

}  // namespace ljtrain::base
