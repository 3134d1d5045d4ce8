// What a shared library asks the loader for.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ljtrain::ljperf {

struct DynamicSection {
  std::vector<std::string> needed;  // DT_NEEDED
  std::string rpath;                // searched before LD_LIBRARY_PATH
  std::string runpath;              // searched after it
};

// Of a 64-bit little-endian ELF file; nullopt for any other file, and for a damaged one. Reads
// headers and names only, however large the file is.
std::optional<DynamicSection> read_dynamic_section(const std::filesystem::path& file);

}  // namespace ljtrain::ljperf
