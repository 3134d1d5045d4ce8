// The table that people read, 100 columns wide.
#pragma once

#include <string>
#include <vector>

#include "comm/results.h"

namespace ljtrain::ljperf {

std::string table_header();
// The rows of one operation and size.
std::string table_rows(const std::vector<CommRow>& rows);
std::string summary_table(const std::vector<CommSummary>& summaries);

}  // namespace ljtrain::ljperf
