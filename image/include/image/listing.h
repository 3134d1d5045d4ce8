// Releases as text for a terminal, at most 100 columns wide.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "image/release.h"

namespace ljtrain::image {

// One line a release.
std::string list_text(std::span<const Release> releases);
// All of one, on that architecture.
std::string show_text(const Release& release, std::string_view architecture);
// What to know before pulling it: what it is not for, known issues. One a line; may be empty.
std::string caveats_text(const Release& release);

// "eth0 for 1, 2, 4, 8 GPUs a pod (and by default)".
std::string describe(const InterfaceRule& rule);

}  // namespace ljtrain::image
