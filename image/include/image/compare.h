// What changes between two releases.
#pragma once

#include <string>
#include <vector>

#include "image/release.h"

namespace ljtrain::image {

struct Difference {
  std::string key;     // "torch", "driver", ...
  std::string before;  // empty: not there
  std::string after;
};

// Ordered: the release's own properties first, then components by name. A component that a release
// does not list may still be in it; so it counts as unlisted, not as removed.
std::vector<Difference> compare(const Release& before, const Release& after,
                                std::string_view architecture);
std::string diff_text(const Release& before, const Release& after,
                      const std::vector<Difference>& differences);

}  // namespace ljtrain::image
