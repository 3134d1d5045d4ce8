// From a record's file to the row that the index keeps.
#pragma once

#include <filesystem>

#include "base/json.h"
#include "store/summary.h"

namespace ljtrain::cnp {

// Reads and checks the file. UserError with file, line and key when it is no record, of a later
// schema, or named other than its record_id.
Summary read_summary(const std::filesystem::path& file);

// Of a document that has been checked.
Summary summarize(const base::Json& record);

}  // namespace ljtrain::cnp
