// The options that choose records, the same in every command that has them.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <string>

#include "store/record_store.h"

namespace ljtrain::cnp {

struct FilterOptions {
  std::string model;
  std::string engine;
  std::string tag;
  std::string status;
  std::string kind;
  std::string since;
  std::string before;
};

void add_filter_options(CLI::App& command, FilterOptions& options);

// UserError for a status, kind or time that does not exist.
Filter filter_of(const FilterOptions& options);

// "2026-11-30", "2026-11-30T12:01", "2026-11-30T12:01:02Z", or a time before `now`: "90m", "12h",
// "7d", "2w" -> "2026-11-30T12:01:02Z". UserError that names `option` for anything else.
std::string parse_time(const std::string& option, const std::string& text,
                       std::chrono::system_clock::time_point now);

}  // namespace ljtrain::cnp
