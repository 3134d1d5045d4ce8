// The JSON of fits/cpu.json, put into the program by the build.
#pragma once

#include <string_view>

namespace ljtrain::recompute {

std::string_view embedded_fit();

}  // namespace ljtrain::recompute
