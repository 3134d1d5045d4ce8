// Text from outside, made fit to print.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ljtrain::base {

// The text with control characters (a terminal obeys them), characters that are invisible or turn the
// direction of what follows, and bytes that are no UTF-8 written as \xNN, and cut to `most` bytes with
// "..." where it is longer.
std::string printable(std::string_view text, std::size_t most = 200);

// Columns that printable text takes on a terminal: East Asian wide characters and emoji take two,
// combining marks none.
std::size_t display_width(std::string_view text);

// printable(text) that takes at most `columns` (from 1): where it is longer, its beginning and "…".
std::string fitted(std::string_view text, std::size_t columns);

}  // namespace ljtrain::base
