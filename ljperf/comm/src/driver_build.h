// Drivers that are compiled on the user's machine, against a library found there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ljtrain::ljperf {

// Compiles `source` (a name of driver_sources()) with `command`, which ends before the source's
// name, plus `tail` (libraries), unless the cache ($XDG_CACHE_HOME or ~/.cache, ljtrain/comm) holds
// the result of the same. Returns the program. Throws RunError with the compiler's first complaint.
std::filesystem::path build_driver(const std::string& source,
                                   const std::vector<std::string>& command,
                                   const std::vector<std::string>& tail);

// A program of that name in PATH; empty when there is none.
std::filesystem::path find_in_path(const std::string& name);

}  // namespace ljtrain::ljperf
