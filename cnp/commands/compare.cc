// cnp compare: what differs between two sets of runs, which is faster, and do they compute the same?
#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "base/errors.h"
#include "base/text.h"
#include "base/units.h"
#include "cnp/comparison.h"
#include "commands.h"
#include "open_store.h"
#include "selected.h"
#include "store/resolve.h"
#include "table.h"

namespace ljtrain::cnp {
namespace {

constexpr const char* kExamples = R"(Examples:
  cnp compare latest~1 latest
  cnp compare base candidate          two tags: their records are repeats
  cnp compare 5f0c2a91,77ab01c3 latest --json

The sides may take turns (A B, B A, ...): then pairs are compared, which is by far the most exact.
)";

struct CompareOptions {
  std::string a;
  std::string b;
  bool force = false;
  bool json = false;
};

std::string percent(double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); }

std::string side_line(const char* letter, const Side& side) {
  std::size_t runs = 0;
  for (const Record& record : side.records) runs += record.runs.size();
  const Record& first = side.records.front();
  auto or_unknown = [](const std::string& text) {
    return text.empty() ? std::string("?") : base::printable(text);
  };
  std::string ranks = first.ranks > 0 ? std::to_string(first.ranks) : "?";
  return fmt::format("{}  {}: {} {} of {}/{}, {} {}\n", letter, base::printable(side.name, 60),
                     runs, runs == 1 ? "run" : "runs", or_unknown(first.engine),
                     or_unknown(first.model), ranks, first.ranks == 1 ? "rank" : "ranks");
}

void print_differences(const std::vector<Difference>& differences) {
  if (differences.empty()) {
    fmt::print("\nNo key of the configuration differs.\n\n");
    return;
  }
  const std::vector<Column> columns = {
      {.title = "DIFFERENT KEY", .least = 20, .importance = Column::kAlways},
      {.title = "A", .least = 8, .importance = Column::kAlways},
      {.title = "B", .least = 8, .importance = Column::kAlways},
      {.title = "", .importance = 50}};
  std::vector<std::vector<std::string>> rows;
  for (const Difference& difference : differences) {
    rows.push_back({difference.key, difference.a.empty() ? "-" : difference.a,
                    difference.b.empty() ? "-" : difference.b,
                    difference.unlike ? "another task" : ""});
  }
  fmt::print("\n{}\n", format_table(columns, rows, output_width()));
}

std::string speed_words(const Comparison& comparison) {
  const RunRatio& speed = comparison.speed;
  if (!speed.interval) return fmt::format("{:.3f}x, no interval", speed.ratio);
  return fmt::format("{:.3f}x [{:.3f}, {:.3f}]", speed.ratio, speed.interval->low,
                     speed.interval->high);
}

std::string memory_words(const MemoryComparison& memory) {
  if (!memory.ratio) return "not measured";
  std::string words = percent(*memory.ratio - 1);
  if (memory.interval->low != memory.interval->high) {
    words += fmt::format(" [{}, {}]", percent(memory.interval->low - 1),
                         percent(memory.interval->high - 1));
  }
  return words;
}

std::string bytes_words(const std::optional<std::uint64_t>& bytes) {
  return bytes ? base::format_bytes(static_cast<double>(*bytes)) : "-";
}

void print_figures(const Side& a, const Side& b, const Comparison& comparison) {
  auto rate = [](const Side& side) {
    std::optional<double> tokens = tokens_per_step(side);
    return tokens ? base::format_count(*tokens / step_time(side)) : std::string("-");
  };
  const std::vector<Column> columns = {{.title = "", .importance = Column::kAlways},
                                       {.title = "A", .right = true, .importance = Column::kAlways},
                                       {.title = "B", .right = true, .importance = Column::kAlways},
                                       {.title = "B AGAINST A", .importance = Column::kAlways}};
  fmt::print("{}",
             format_table(columns,
                          {{"step", base::format_seconds(step_time(a)),
                            base::format_seconds(step_time(b)), ""},
                           {"tokens/s", rate(a), rate(b), speed_words(comparison)},
                           {"peak memory", bytes_words(comparison.memory.a),
                            bytes_words(comparison.memory.b), memory_words(comparison.memory)}},
                          output_width()));
}

// "faster by 20.3 %", or what keeps it from being said.
std::string conclusion(const Comparison& comparison) {
  const RunRatio& speed = comparison.speed;
  std::string_view found = verdict(speed);
  std::string sentence;
  if (!speed.interval) {
    sentence = "no interval with one run a side: `ljperf benchmark --repeat 5`, or several records";
  } else if (found == "no difference shown") {
    sentence = fmt::format("no difference shown: the {:.0f} % interval holds 1", 100 * speed.level);
  } else {
    sentence = fmt::format("B is {} by {:.1f} %", found,
                           100 * std::abs(found == "faster" ? speed.ratio - 1 : 1 - speed.ratio));
    if (comparison.loss.verdict == Parity::kOutside) sentence += ", but computes another loss";
    if (comparison.loss.verdict == Parity::kUnknown) {
      sentence += ", if it computes the same, which is unknown";
    }
  }
  return sentence;
}

std::string p_words(const RunRatio& speed) {
  if (!speed.p_value) return "";
  if (*speed.p_value < 1e-4) return ", p < 0.0001";
  return fmt::format(", p = {:.4f}", *speed.p_value);
}

void print_report(const Side& a, const Side& b, const Comparison& comparison) {
  std::string proxy = proxy_line(a, b);
  if (!proxy.empty()) fmt::print("{}\n", proxy);
  fmt::print("{}{}", side_line("A", a), side_line("B", b));
  print_differences(comparison.differences);
  print_figures(a, b, comparison);
  bool unknown = comparison.loss.verdict == Parity::kUnknown;
  fmt::print("\ntest   {}{}\n", comparison.speed.how, p_words(comparison.speed));
  fmt::print("loss   {}{}\n", unknown ? "unknown: " : "", comparison.loss.sentence);
  std::string unlike = unlike_sentence(comparison.differences);
  if (!unlike.empty()) fmt::print("FORCED: not the same task: {}\n", unlike);
  fmt::print("{}\n", conclusion(comparison));
  if (!proxy.empty()) fmt::print("{}\n", proxy);
}

void compare_sides(const CompareOptions& options) {
  RecordStore store = open_store();
  std::vector<Record> of_a = selected(store, {options.a});
  std::vector<Record> of_b = selected(store, {options.b});
  require_apart(of_a, of_b);
  Side a = make_side(options.a, std::move(of_a), options.force);
  Side b = make_side(options.b, std::move(of_b), options.force);
  Comparison comparison = compare(a, b);
  std::string unlike = unlike_sentence(comparison.differences);
  if (!unlike.empty() && !options.force) {
    throw base::user_error(
        "{} and {} are not the same task: {}; --force compares them all the same",
        base::printable(options.a, 60), base::printable(options.b, 60), unlike);
  }
  if (!options.json) {
    print_report(a, b, comparison);
    return;
  }
  base::OrderedJson document = base::OrderedJson::object();
  document["schema_version"] = 1;
  document["a"] = to_json(a);
  document["b"] = to_json(b);
  document["forced"] = !unlike.empty();
  document.update(to_json(comparison));
  document["conclusion"] = conclusion(comparison);
  print_document(document);
}

}  // namespace

void add_compare(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("compare", "Compare two sets of runs: speed, memory, loss");
  auto options = std::make_shared<CompareOptions>();
  command->add_option("A", options->a, kSideHelp)->required();
  command->add_option("B", options->b, "The same; it is held against A")->required();
  command->add_flag("--force", options->force,
                    "Compare unlike tasks and incomplete records all the same");
  command->add_flag("--json", options->json, "One JSON document on standard output");
  command->footer(kExamples);
  command->callback([&context, options] {
    compare_sides(*options);
    context.exit_code = base::kDone;
  });
}

}  // namespace ljtrain::cnp
