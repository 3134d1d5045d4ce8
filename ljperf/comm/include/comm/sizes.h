// The sizes a run measures, as typed after --sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ljtrain::ljperf {

// "8,1KiB,1MiB": a list; "8:64MiB:x2": from, to, factor; "1MiB:4MiB:1MiB" (or +1MiB): from, to,
// step; "1KiB:8KiB": factor 2. Commas join any of them. Ascending, without doubles, bytes. Throws
// UserError that names the part.
std::vector<std::uint64_t> parse_sizes(const std::string& text);

// 8 -> "8 B", 65536 -> "64 KiB", 65537 -> "65537 B": short, and exact.
std::string exact_bytes(std::uint64_t bytes);

}  // namespace ljtrain::ljperf
