// Questions to the index.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sqlite.h"
#include "store/record_store.h"

namespace ljtrain::cnp {

std::vector<Summary> query_records(sqlite::Database& database, const Filter& filter,
                                   std::size_t most);
std::size_t count_records(sqlite::Database& database, const Filter& filter);
std::optional<Summary> find_record(sqlite::Database& database, std::string_view id);
std::vector<Problem> query_problems(sqlite::Database& database);
std::vector<std::string> query_ids_matching(sqlite::Database& database, std::string_view part,
                                            std::size_t most);

}  // namespace ljtrain::cnp
