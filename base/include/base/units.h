// Quantities as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ljtrain::base {

// "20GiB", "512 MB", "1024" -> bytes. Throws UserError on anything else.
std::uint64_t parse_bytes(std::string_view text);
// 1536 -> "1.50 KiB".
std::string format_bytes(double bytes);
// 8030261248 -> "8.03 B" (thousand K, million M, billion B, trillion T).
std::string format_count(double count);
// 0.00123 -> "1.23 ms"; 83 -> "1 min 23 s".
std::string format_seconds(double seconds);

}  // namespace ljtrain::base
