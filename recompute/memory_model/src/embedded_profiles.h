// The shipped profiles as text; the source is written by the build (cmake/embed_profiles.cmake).
#pragma once

#include <span>
#include <string_view>

namespace ljtrain::recompute {

struct EmbeddedProfile {
  std::string_view family;
  std::string_view json;
};

std::span<const EmbeddedProfile> embedded_profiles();

}  // namespace ljtrain::recompute
