// "Did you mean": the names nearest to one that is unknown.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace ljtrain::base {

// Edits (insert, delete, replace, swap of neighbours) between two names: the optimal string
// alignment distance.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Up to `most` of `names`, nearest first, those that are near enough to be meant: at most half of
// the name's letters changed, or one containing the other.
std::vector<std::string_view> nearest_names(std::string_view name,
                                            std::span<const std::string_view> names,
                                            std::size_t most = 3);

}  // namespace ljtrain::base
