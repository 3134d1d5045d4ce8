// Text from outside, made fit to print.
#pragma once

#include <string>
#include <string_view>

namespace ljtrain::base {

// The text with control characters (a terminal obeys them) and bytes that are no UTF-8 written as
// \xNN, and cut to `most` bytes with "..." where it is longer.
std::string printable(std::string_view text, std::size_t most = 200);

}  // namespace ljtrain::base
