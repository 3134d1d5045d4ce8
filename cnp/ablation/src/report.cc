#include "report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.h"
#include "base/units.h"
#include "schedule.h"

namespace ljtrain::cnp {
namespace {

constexpr std::size_t kNameWidth = 36;
constexpr std::size_t kMostName = 50;
constexpr int kSchemaVersion = 1;

std::string words(const std::optional<RatioEstimate>& ratio) {
  if (!ratio.has_value()) {
    return "";
  }
  if (!ratio->ci95.has_value()) {
    return fmt::format("{:.2f}x", ratio->ratio);
  }
  return fmt::format("{:.2f}x ({:.2f}-{:.2f})", ratio->ratio, ratio->ci95->low, ratio->ci95->high);
}

bool misses_parity(const RowResult& result) {
  return result.parity.has_value() && result.parity->verdict == Parity::kOutside;
}

std::string table_line(const RowResult& result, bool is_base) {
  std::string name = base::fitted(result.row.name, kMostName);
  if (result.completed == 0) {
    return fmt::format("  {:<{}} {}\n", name, kNameWidth,
                       result.sentence.empty()
                           ? "not measured"
                           : "FAILED: " + base::printable(result.sentence, 300));
  }
  std::string memory =
      result.peak_bytes.has_value()
          ? fmt::format("{:.0f}", static_cast<double>(*result.peak_bytes) / (1 << 20))
          : "-";
  return fmt::format("  {:<{}} {:>8} {:>8.0f} {:>17} {:>17} {:>6}{}\n", name, kNameWidth,
                     base::format_seconds(*result.step_s), *result.tokens_per_s,
                     is_base ? "1" : words(result.speedup), words(result.contribution), memory,
                     misses_parity(result) ? " LOSS" : "");
}

std::string parity_lines(const std::vector<RowResult>& results) {
  std::string text;
  double largest = 0;
  double tolerance = 0;
  std::size_t equal = 0;
  for (const RowResult& result : results) {
    if (!result.parity.has_value()) {
      if (!result.row.why_not_same.empty() && result.completed > 0) {
        text += fmt::format("  loss of `{}`: not comparable, {}\n", result.row.name,
                            result.row.why_not_same);
      }
      continue;
    }
    const LossParity& parity = *result.parity;
    if (parity.verdict == Parity::kSame || parity.verdict == Parity::kWithin) {
      largest = std::max(largest, parity.largest);
      tolerance = parity.tolerance;
      ++equal;
    } else {
      text += fmt::format("  loss of `{}`: {}\n", base::printable(result.row.name),
                          base::printable(parity.sentence, 300));
    }
  }
  if (equal > 0) {
    text = fmt::format(
               "  losses: {} equal to Base's in every step, within {:.1e} "
               "(tolerance {:.1e})\n",
               equal == 1 ? "1 row is" : fmt::format("{} rows are", equal), largest, tolerance) +
           text;
  }
  return text;
}

std::string failure_lines(const std::vector<RowResult>& results) {
  std::string text;
  for (const RowResult& result : results) {
    if (result.completed > 0 && result.failed > 0) {
      text += fmt::format("  `{}`: {} of {} runs failed, the last: {}\n",
                          base::printable(result.row.name), result.failed,
                          result.failed + result.completed, base::printable(result.sentence, 300));
    }
  }
  return text;
}

std::string mebi(std::uint64_t bytes) {
  return fmt::format("{:.0f}", static_cast<double>(bytes) / (1 << 20));
}

std::string decision_lines(const Ablation& ablation, std::size_t complete) {
  std::string text = fmt::format(
      "  {} interleaved blocks, {} + {} steps a run, 95 % intervals over "
      "blocks; {} of {} spent\n",
      complete, kRunWarmup, ablation.steps, base::format_seconds(ablation.spent_s),
      base::format_seconds(ablation.options.budget_s));
  if (ablation.stock_compile_ratio.has_value()) {
    text += fmt::format(
        "  Base runs {} stock torch_compile: with it a step took {:.2f}x as long in "
        "the warm-up\n",
        ablation.stock_compile ? "with" : "without", 1 / *ablation.stock_compile_ratio);
  }
  if (ablation.limit_bytes.has_value()) {
    text += fmt::format(
        "  memory limit: {} MiB a rank, 60 % of the way from everything "
        "checkpointed ({}) to nothing ({})\n",
        mebi(*ablation.limit_bytes), mebi(ablation.full_bytes.value_or(0)),
        mebi(ablation.none_bytes.value_or(0)));
  }
  return text;
}

base::OrderedJson pair_of(const std::optional<RatioEstimate>& ratio) {
  if (!ratio.has_value() || !ratio->ci95.has_value()) {
    return nullptr;
  }
  return base::OrderedJson::array({ratio->ci95->low, ratio->ci95->high});
}

template <typename T>
base::OrderedJson optional(const std::optional<T>& value) {
  return value.has_value() ? base::OrderedJson(*value) : base::OrderedJson(nullptr);
}

const char* verdict_name(Parity verdict) {
  switch (verdict) {
    case Parity::kSame:
      return "same";
    case Parity::kWithin:
      return "within";
    case Parity::kOutside:
      return "outside";
    case Parity::kUnknown:
      break;
  }
  return "unknown";
}

base::OrderedJson row_json(const RowResult& result, bool is_base) {
  base::OrderedJson row{{"configuration", result.row.name},
                        {"id", result.row.id},
                        {"record_ids", result.record_ids},
                        {"step_time_s", optional(result.step_s)},
                        {"tokens_per_s", optional(result.tokens_per_s)}};
  row["speedup_vs_base"] = nullptr;
  if (result.speedup.has_value() || (is_base && result.completed > 0)) {
    row["speedup_vs_base"] = is_base ? 1.0 : result.speedup->ratio;
  }
  row["ci95"] = pair_of(result.speedup);
  row["contribution"] = nullptr;
  if (result.contribution.has_value()) {
    row["contribution"] = result.contribution->ratio;
  }
  row["contribution_ci95"] = pair_of(result.contribution);
  row["contribution_of"] = result.row.adds;
  row["contribution_against"] = result.row.against;
  row["pairs"] = result.speedup.has_value() ? result.speedup->observations : 0;
  row["peak_memory_bytes"] = optional(result.peak_bytes);
  row["resident_peak_bytes"] = optional(result.resident_bytes);
  row["status"] = result.completed == 0 ? "failed" : "completed";
  row["runs_completed"] = result.completed;
  row["runs_failed"] = result.failed;
  row["failure"] =
      result.sentence.empty() ? base::OrderedJson(nullptr) : base::OrderedJson(result.sentence);
  row["loss_parity"] = nullptr;
  if (result.parity.has_value()) {
    row["loss_parity"] = {{"verdict", verdict_name(result.parity->verdict)},
                          {"largest", result.parity->largest},
                          {"tolerance", result.parity->tolerance},
                          {"sentence", result.parity->sentence}};
  } else if (!result.row.same_loss) {
    row["loss_parity"] = {{"verdict", "not comparable"}, {"sentence", result.row.why_not_same}};
  }
  row["arguments"] = result.row.arguments;
  row["environment"] = result.row.environment;
  return row;
}

}  // namespace

std::string result_text(const Ablation& ablation, const std::vector<RowResult>& results) {
  int complete = 0;
  std::string text =
      fmt::format("  {:<{}} {:>8} {:>8} {:>17} {:>17} {:>6}\n", "configuration", kNameWidth, "step",
                  "tokens/s", "against Base", "this part", "MiB");
  for (const RowResult& result : results) {
    text += table_line(result, &result == &results.front());
    complete = std::max(complete, result.completed);
  }
  text += "\n" + decision_lines(ablation, static_cast<std::size_t>(complete));
  text += parity_lines(results) + failure_lines(results);
  if (!ablation.proxy.empty()) {
    text += fmt::format("Not the full model: PROXY {}.\n", ablation.proxy);
  }
  return text;
}

base::OrderedJson result_json(const Ablation& ablation, const std::vector<RowResult>& results,
                              bool interrupted) {
  base::OrderedJson rows = base::OrderedJson::array();
  for (const RowResult& result : results) {
    rows.push_back(row_json(result, &result == &results.front()));
  }
  return {{"schema_version", kSchemaVersion},
          {"kind", "ablation"},
          {"id", ablation.id},
          {"created", ablation.created},
          {"status", interrupted ? "interrupted" : "completed"},
          {"stopped", interrupted ? "interrupted" : ablation.stopped},
          {"model", ablation.options.model},
          {"proxy",
           ablation.proxy.empty() ? base::OrderedJson(nullptr) : base::OrderedJson(ablation.proxy)},
          {"options_of_runs", ablation.options.more},
          {"seed", ablation.options.seed},
          {"steps", ablation.steps},
          {"budget_s", ablation.options.budget_s},
          {"spent_s", ablation.spent_s},
          {"until", ablation.options.until},
          {"blocks", ablation.blocks.size()},
          {"base_stock_compile", ablation.stock_compile},
          {"base_stock_compile_ratio", optional(ablation.stock_compile_ratio)},
          {"memory_limit_bytes",
           {{"full_checkpointing", optional(ablation.full_bytes)},
            {"no_checkpointing", optional(ablation.none_bytes)},
            {"limit", optional(ablation.limit_bytes)}}},
          {"rows", rows}};
}

bool has_failures(const Ablation& ablation, const std::vector<RowResult>& results) {
  bool ladder = ablation.options.axes.empty();  // an axis may change the loss on purpose
  return std::ranges::any_of(results, [&](const RowResult& result) {
    return result.completed == 0 || (ladder && misses_parity(result));
  });
}

}  // namespace ljtrain::cnp
