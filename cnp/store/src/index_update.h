// Brings an index up to date with its folder.
#pragma once

#include <cstddef>
#include <filesystem>

#include "sqlite.h"

namespace ljtrain::cnp {

// Reads what is new or replaced, forgets what is gone. Returns how many record files it read.
// Nothing to do costs two stat calls and one query.
std::size_t update_index(sqlite::Database& database, const std::filesystem::path& folder);

}  // namespace ljtrain::cnp
