#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/comparison.h"

namespace ljtrain::cnp {
namespace {

constexpr double kSmallestLoss = 1e-3;  // below, a relative difference means nothing

LossParity unknown(std::string sentence) {
  LossParity found;
  found.sentence = std::move(sentence);
  return found;
}

// The losses of each run; those of the record where its runs hold none. At least one list.
std::vector<std::vector<double>> losses_of(const Record& record) {
  std::vector<std::vector<double>> found;
  for (const Run& run : record.runs) {
    if (run.steps.empty()) continue;
    found.emplace_back();
    for (const Step& step : run.steps) found.back().push_back(step.loss);
  }
  if (found.empty()) found.push_back(record.loss);
  return found;
}

// Digests hold a word a step, for the first few: as far as both go they must agree.
bool same_start(std::string_view a, std::string_view b) {
  std::size_t shorter = std::min(a.size(), b.size());
  return a.substr(0, shorter) == b.substr(0, shorter);
}

bool same_data(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same_start);
}

// Why the losses of two records cannot be held against each other; "" when they can.
std::string why_not(const Record& a, const Record& b) {
  if (a.precision != b.precision) return "the precisions differ";
  if (!a.seed || !b.seed || a.data.digests.empty() || b.data.digests.empty()) {
    return "a side does not say its seed, or which data it read";
  }
  if (a.seed != b.seed) return "the seeds differ";
  if (!same_data(a.data.digests, b.data.digests)) {
    return "the ranks did not read the same data (another number of steps mixes it differently)";
  }
  if (a.precision != "bf16" && a.precision != "fp16" && a.precision != "fp32") {
    return fmt::format("no tolerance is known for the precision `{}`",
                       base::printable(a.precision));
  }
  return "";
}

LossParity parity(const std::vector<double>& a, const std::vector<double>& b,
                  std::string_view precision) {
  LossParity found;
  found.steps = std::min(a.size(), b.size());
  found.tolerance = loss_tolerance(precision);
  if (found.steps == 0) return unknown("a side records no loss");
  double sum = 0;
  bool same = true;
  for (std::size_t i = 0; i < found.steps; ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
      bool both = !std::isfinite(a[i]) && !std::isfinite(b[i]);
      if (both) return unknown(fmt::format("the loss of step {} is finite on neither side", i));
      found.verdict = Parity::kOutside;
      found.worst_step = i;
      found.largest = HUGE_VAL;
      found.sentence = fmt::format("the loss of step {} is finite on one side only", i);
      return found;
    }
    double relative = (b[i] - a[i]) / std::max(std::abs(a[i]), kSmallestLoss);
    sum += relative;
    same = same && a[i] == b[i];
    if (std::abs(relative) > found.largest) {
      found.largest = std::abs(relative);
      found.worst_step = i;
    }
  }
  found.mean_difference = sum / static_cast<double>(found.steps);
  if (same) {
    found.verdict = Parity::kSame;
    found.sentence = fmt::format("the same to the last bit in all {} steps", found.steps);
    return found;
  }
  bool within = found.largest <= found.tolerance;
  found.verdict = within ? Parity::kWithin : Parity::kOutside;
  found.sentence =
      fmt::format("{:.4f} % apart at most, in step {} of {}: {} the tolerance of {:.4f} % ({})",
                  100 * found.largest, found.worst_step, found.steps, within ? "within" : "OUTSIDE",
                  100 * found.tolerance, precision);
  return found;
}

}  // namespace

double loss_tolerance(std::string_view precision) {
  if (precision == "bf16") return 0x1p-10;
  if (precision == "fp16") return 0x1p-13;
  if (precision == "fp32") return 0x1p-15;
  throw base::user_error("no tolerance of the loss is known for the precision `{}`",
                         base::printable(precision));
}

LossParity loss_parity(const Side& a, const Side& b) {
  const Record& reference = a.records.front();
  std::vector<double> losses = losses_of(reference).front();
  std::optional<LossParity> worst;
  for (const Record& record : b.records) {
    if (std::string reason = why_not(reference, record); !reason.empty()) return unknown(reason);
    for (const std::vector<double>& run : losses_of(record)) {
      LossParity found = parity(losses, run, reference.precision);
      if (found.verdict == Parity::kUnknown) return found;
      if (!worst || found.largest > worst->largest) worst = std::move(found);
    }
  }
  return *worst;
}

LossParity loss_parity(const Record& a, const Record& b) {
  return loss_parity(Side{a.record_id, {a}}, Side{b.record_id, {b}});
}

}  // namespace ljtrain::cnp
