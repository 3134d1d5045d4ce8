// Two sets of records held against each other: are they alike enough, which is faster, does it
// need more memory, and does it compute the same? docs/cnp.md shows the command, docs/statistics.md
// the estimators.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cnp/record.h"
#include "cnp/run_ratio.h"

namespace ljtrain::cnp {

// Repeats of one configuration, in order of time.
struct Side {
  std::string name;  // as the user gave it
  std::vector<Record> records;
};

// Sorts, and checks that the records can be compared with anything. UserError that names the record
// when there is none, when one has no step after warm-up or a step time that is not above 0; and,
// unless `forced`, when one did not complete or is no repeat of the first: another task, another
// engine, other components.
Side make_side(std::string name, std::vector<Record> records, bool forced = false);

struct Difference {
  std::string key;  // as in the record: "proxy.rule"
  std::string a;    // the values as text; "" when absent
  std::string b;
  // Another task (model, data, tokens a step, precision, hardware ...): a ratio of step times would
  // mean nothing. Otherwise another way to do the same one (components, engine, versions ...).
  bool unlike = false;
};

// What differs in configuration, unlike ones first; measurements are not looked at.
std::vector<Difference> differences(const Record& a, const Record& b);

// The first of `differences` that repeats of one configuration do not show: unlike, or in engine,
// components, compilation, ZeRO stage, threads, layers recomputed. nullptr: they are repeats.
const Difference* no_repeat(std::span<const Difference> differences);

// The largest relative difference of a step's loss that rounding explains, by the precision of the
// run: a quarter of the unit roundoff for bf16 (2^-10) and fp16 (2^-13), 2^-15 for fp32
// (docs/statistics.md, "Loss parity", derives them). UserError for another precision.
double loss_tolerance(std::string_view precision);

enum class Parity {
  kSame,     // bit for bit
  kWithin,   // within the tolerance
  kOutside,  // not
  kUnknown,  // cannot be told; the sentence says why
};

struct LossParity {
  Parity verdict = Parity::kUnknown;
  double tolerance = 0;        // relative, of each step
  double largest = 0;          // |b - a| / |a| of the worst step
  std::size_t worst_step = 0;  // from 0
  std::size_t steps = 0;       // compared: those both have
  double mean_difference = 0;  // mean of (b - a) / |a|: a bias keeps its sign
  std::string sentence;
};

// Of b against a, step by step over the steps that both ran (warm-up included: it trains, too).
// Every run of b is held against the first of a; the worst is what is returned.
LossParity loss_parity(const Side& a, const Side& b);
// Of one record against another.
LossParity loss_parity(const Record& a, const Record& b);

struct MemoryComparison {
  std::optional<std::uint64_t> a;    // peak of the rank that needs most, bytes; mean over runs
  std::optional<std::uint64_t> b;    // null: a record does not say
  std::optional<double> ratio;       // b / a: above 1, b needs more
  std::optional<Interval> interval;  // of `level`: Welch's; a point where peaks repeat exactly or a
                                     // side has one run, as allocations do not depend on time
  double level = 0.95;
};

MemoryComparison compare_memory(const Side& a, const Side& b, double level = 0.95);

// What ratio_of_runs() takes. Times are seconds a step or, `per_token`, a token of the whole step:
// then a forced comparison of unequal steps is one of throughput. UserError when a record does not
// say its tokens.
std::vector<Measurement> measurements(const Side& side, bool per_token);

// Tokens a step over all ranks; nullopt when a record does not say (an import), or they differ.
std::optional<double> tokens_per_step(const Side& side);

// Seconds: geometric mean of the medians of the runs.
double step_time(const Side& side);

struct Comparison {
  std::vector<Difference> differences;
  RunRatio speed;  // ratio: tokens/s of b / tokens/s of a; steps/s when a side's are unknown
  MemoryComparison memory;
  LossParity loss;
  bool proxy = false;  // either side
};

// "faster", "slower" or "no difference shown" of b, by the interval.
std::string_view verdict(const RunRatio& speed);

Comparison compare(const Side& a, const Side& b, double level = 0.95);

// "models differ (llama3-8b, qwen3-8b)" of the first unlike difference and how many more; "" when
// the sides are alike.
std::string unlike_sentence(std::span<const Difference> differences);

}  // namespace ljtrain::cnp
