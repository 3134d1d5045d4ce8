// What a user may write where a record is meant.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "store/record_store.h"

namespace ljtrain::cnp {

// What every command that takes one says in its help.
inline constexpr const char* kSelectorHelp =
    "An id, its first or last letters, a tag, latest, latest~1 (the one before), or a file";

// The one record that `selector` names; a tag that several bear gives the newest. The file exists.
//   PATH.json, or anything with a slash: that file
//   latest, latest~N: the newest record of a benchmark, or the N-th before it
//   an id; a tag; the first or last letters of an id, when only one record has them
// UserError when nothing or more than one fits, naming what is near.
std::filesystem::path resolve_record(const RecordStore& store, std::string_view selector);

// The same, but a tag gives every record that bears it, newest first.
std::vector<std::filesystem::path> resolve_records(const RecordStore& store,
                                                   std::string_view selector);

}  // namespace ljtrain::cnp
