// Tables for terminals: what does not fit is shortened, then left out, least important first.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ljtrain::cnp {

struct Column {
  std::string title;
  bool right = false;     // aligned to the right: numbers
  std::size_t least = 0;  // may be shortened to so many columns; 0: never shortened
  int importance = 0;     // the least important are left out first; those of kAlways never
  static constexpr int kAlways = 100;
};

// Lines of at most `width` columns (0: as wide as need be), each ended by '\n', with the titles
// first. Cells may hold anything: what a terminal would obey is escaped. Every row has a cell a
// column.
std::string format_table(const std::vector<Column>& columns,
                         const std::vector<std::vector<std::string>>& rows, std::size_t width);

// Columns of standard output: the terminal's, else $COLUMNS, else 0 (a file or a pipe).
std::size_t output_width();

}  // namespace ljtrain::cnp
