// The text of drivers/, by file name.
#pragma once

#include <map>
#include <string>

namespace ljtrain::ljperf {

const std::map<std::string, std::string>& driver_sources();

}  // namespace ljtrain::ljperf
