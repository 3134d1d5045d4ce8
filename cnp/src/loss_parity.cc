#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/comparison.h"

namespace ljtrain::cnp {
namespace {

LossParity unknown(std::string sentence) {
  LossParity found;
  found.sentence = std::move(sentence);
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

LossParity loss_parity(const Record& a, const Record& b) {
  if (a.precision != b.precision) return unknown("the precisions differ");
  if (a.seed && b.seed && *a.seed != *b.seed) {
    return unknown("the seeds differ, so no step computes the same on both sides");
  }
  if (!a.data.digests.empty() && !b.data.digests.empty() && a.data.digests != b.data.digests) {
    return unknown("the data differ, so no step computes the same on both sides");
  }
  if (a.precision != "bf16" && a.precision != "fp16" && a.precision != "fp32") {
    return unknown(
        fmt::format("no tolerance is known for the precision `{}`", base::printable(a.precision)));
  }
  LossParity found;
  found.steps = std::min(a.loss.size(), b.loss.size());
  found.tolerance = loss_tolerance(a.precision);
  if (found.steps == 0) return unknown("a side records no loss");
  double sum = 0;
  bool same = true;
  for (std::size_t i = 0; i < found.steps; ++i) {
    if (!std::isfinite(a.loss[i]) || !std::isfinite(b.loss[i])) {
      bool both = !std::isfinite(a.loss[i]) && !std::isfinite(b.loss[i]);
      if (both) return unknown(fmt::format("the loss of step {} is finite on neither side", i));
      found.verdict = Parity::kOutside;
      found.worst_step = i;
      found.largest = HUGE_VAL;
      found.sentence = fmt::format("the loss of step {} is finite on one side only", i);
      return found;
    }
    double scale = std::max(std::abs(a.loss[i]), 1e-12);
    double relative = (b.loss[i] - a.loss[i]) / scale;
    sum += relative;
    same = same && a.loss[i] == b.loss[i];
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
  found.sentence = fmt::format(
      "{} {:.4f} % of each other (tolerance {:.4f} %, {}) in {} steps, furthest in step {}",
      within ? "within" : "NOT equal: up to", 100 * found.largest, 100 * found.tolerance,
      a.precision, found.steps, found.worst_step);
  return found;
}

}  // namespace ljtrain::cnp
