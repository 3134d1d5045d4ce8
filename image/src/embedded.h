// What the build puts into the program: the manifests and the driver table, as text.
#pragma once

#include <span>
#include <string_view>

namespace ljtrain::image {

struct EmbeddedRelease {
  std::string_view name;
  std::string_view json;
};

std::span<const EmbeddedRelease> embedded_releases();  // ascending by file name
std::string_view embedded_driver_table();              // facts/cuda_driver.csv

}  // namespace ljtrain::image
