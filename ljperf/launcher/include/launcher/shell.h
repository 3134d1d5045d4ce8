// Words for a POSIX shell. The only place where text becomes part of a shell's input.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ljtrain::ljperf {

// The word that a POSIX shell reads back as exactly `text`. Plain words stay as they are; all others
// stand in single quotes. Throws UserError for text with a NUL byte, which no argument can hold.
std::string shell_quote(std::string_view text);

// The command that a POSIX shell runs as exactly these arguments.
std::string shell_join(const std::vector<std::string>& argv);

}  // namespace ljtrain::ljperf
