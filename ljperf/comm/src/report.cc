#include "report.h"

#include <fmt/format.h>

#include "comm/sizes.h"

namespace ljtrain::ljperf {
namespace {

constexpr double kGiga = 1e9;
constexpr std::size_t kFewestForInterval = 5;
constexpr const char* kLine = "{:>10} {:<15} {:>10} {:>5} {:>7} {:>7}  {:<23} {:<7} {:>5}\n";

// 1.42, 14.2, 142: three digits.
std::string digits(double value) {
  return value < 0.095 ? fmt::format("{:.1g}", value)
         : value < 10  ? fmt::format("{:.2f}", value)
         : value < 100 ? fmt::format("{:.1f}", value)
                       : fmt::format("{:.0f}", value);
}

std::string ratio_words(const cnp::RatioEstimate& ratio) {
  std::string words = digits(ratio.ratio) + "x";
  // From a handful of blocks an interval tells nothing.
  if (ratio.ci95.has_value() && ratio.observations >= kFewestForInterval) {
    words += fmt::format(" ({} .. {})", digits(ratio.ci95->low), digits(ratio.ci95->high));
  }
  return words;
}

}  // namespace

std::string table_header() {
  return fmt::format(kLine, "size", "library", "time us", "+-%", "algbw", "busbw",
                     "ACCL's speed / its", "verdict", "wrong");
}

std::string table_rows(const std::vector<CommRow>& rows) {
  std::string text;
  for (const CommRow& row : rows) {
    bool ours = row.library == "accl";
    std::string ratio;
    if (row.ratio.has_value()) {
      ratio =
          ours ? fmt::format("({} of memcpy)", digits(row.ratio->ratio)) : ratio_words(*row.ratio);
    }
    text += fmt::format(fmt::runtime(kLine), exact_bytes(row.bytes), row.title(),
                        digits(row.time() * 1e6), fmt::format("{:.0f}", 50 * row.spread()),
                        digits(row.algbw() / kGiga),
                        row.library == "memcpy" ? "" : digits(row.busbw() / kGiga), ratio,
                        row.ratio.has_value() && !ours ? verdict(*row.ratio) : "",
                        row.wrong.has_value() ? std::to_string(*row.wrong) : "");
  }
  return text;
}

std::string summary_table(const std::vector<CommSummary>& summaries) {
  if (summaries.empty()) {
    return "";
  }
  std::string text =
      fmt::format("\n{:<15} {:<14} {:<8} {:>5} {:>5}  {:<23} {:<7} {}\n", "ACCL against",
                  "operation", "dtype", "ranks", "sizes", "geometric mean", "verdict", "lowest");
  for (const CommSummary& summary : summaries) {
    const CommRow& row = *summary.first;
    text +=
        fmt::format("{:<15} {:<14} {:<8} {:>5} {:>5}  {:<23} {:<7} {}x, {}\n", row.title(),
                    ljperf_comm::kOpNames[static_cast<int>(row.op)],
                    ljperf_comm::kTypeNames[static_cast<int>(row.dtype)], row.ranks, summary.sizes,
                    ratio_words(summary.geometric_mean), verdict(summary.geometric_mean),
                    digits(summary.lowest), exact_bytes(summary.lowest_bytes));
  }
  return text;
}

}  // namespace ljtrain::ljperf
