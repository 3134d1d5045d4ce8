#include "table.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/text.h"

namespace ljtrain::cnp {
namespace {

constexpr std::size_t kGap = 2;
// A cell is cut here even when there is room: a name may be megabytes.
constexpr std::size_t kWidestCell = 80;

struct Layout {
  std::vector<std::size_t> shown;   // columns
  std::vector<std::size_t> widths;  // of those shown
};

std::size_t total(const std::vector<std::size_t>& widths) {
  std::size_t sum = widths.empty() ? 0 : kGap * (widths.size() - 1);
  for (std::size_t width : widths) sum += width;
  return sum;
}

// Width to which a column may shrink.
std::size_t floor_of(const Column& column, std::size_t natural) {
  return column.least == 0 ? natural : std::min(column.least, natural);
}

Layout lay_out(const std::vector<Column>& columns, const std::vector<std::size_t>& natural,
               std::size_t width) {
  Layout layout;
  for (std::size_t i = 0; i < columns.size(); ++i) layout.shown.push_back(i);
  auto floors = [&] {
    std::vector<std::size_t> widths;
    for (std::size_t i : layout.shown) widths.push_back(floor_of(columns[i], natural[i]));
    return widths;
  };
  while (width != 0 && total(floors()) > width) {
    auto least = std::min_element(layout.shown.begin(), layout.shown.end(),
                                  [&](std::size_t a, std::size_t b) {
                                    return columns[a].importance < columns[b].importance;
                                  });
    if (columns[*least].importance >= Column::kAlways) break;
    layout.shown.erase(least);
  }
  for (std::size_t i : layout.shown) layout.widths.push_back(natural[i]);
  // The widest that may shrink gives way, column by column.
  while (width != 0 && total(layout.widths) > width) {
    std::size_t widest = layout.shown.size();
    for (std::size_t k = 0; k < layout.shown.size(); ++k) {
      bool may = layout.widths[k] > floor_of(columns[layout.shown[k]], natural[layout.shown[k]]);
      if (may && (widest == layout.shown.size() || layout.widths[k] > layout.widths[widest])) {
        widest = k;
      }
    }
    if (widest == layout.shown.size()) break;
    --layout.widths[widest];
  }
  return layout;
}

void add_line(const std::vector<Column>& columns, const Layout& layout,
              const std::vector<std::string>& cells, std::string& text) {
  std::string line;
  for (std::size_t k = 0; k < layout.shown.size(); ++k) {
    const Column& column = columns[layout.shown[k]];
    std::string cell =
        base::fitted(cells[layout.shown[k]], std::max<std::size_t>(layout.widths[k], 1));
    std::string padding(layout.widths[k] - std::min(base::display_width(cell), layout.widths[k]),
                        ' ');
    line += std::string(k == 0 ? 0 : kGap, ' ') + (column.right ? padding + cell : cell + padding);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  text += line + "\n";
}

}  // namespace

std::string format_table(const std::vector<Column>& columns,
                         const std::vector<std::vector<std::string>>& rows, std::size_t width) {
  std::vector<std::string> titles;
  std::vector<std::size_t> natural;
  for (const Column& column : columns) {
    titles.push_back(column.title);
    natural.push_back(base::display_width(column.title));
  }
  for (const std::vector<std::string>& row : rows) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      natural[i] = std::max(natural[i], base::display_width(base::fitted(row[i], kWidestCell)));
    }
  }
  Layout layout = lay_out(columns, natural, width);
  std::string text;
  add_line(columns, layout, titles, text);
  for (const std::vector<std::string>& row : rows) add_line(columns, layout, row, text);
  return text;
}

std::size_t output_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  return columns == nullptr ? 0 : std::strtoul(columns, nullptr, 10);
}

}  // namespace ljtrain::cnp
