// Where the warm-up of a training run ends, and how correlated the steps after it are.
#pragma once

#include <cstddef>
#include <span>

namespace ljtrain::cnp {

struct Warmup {
  std::size_t warmup_steps = 0;  // steps to leave out, from the first
  bool steady = false;           // the rest shows no drift, and is long enough (4 steps) to tell
  bool operator==(const Warmup&) const = default;
};

// Finds the warm-up from the step times (seconds) of one run.
//
// Truncation: MSER (White 1997; White, Cobb and Spratt 2000): of all d up to max_fraction x n, the
// one that minimises sum((x - mean)^2) / (n - d)^2 over x[d:], the squared standard error of the
// mean. Three changes make it fit for training steps: no batches of 5, since runs have tens of
// steps, not thousands; values are first drawn in to the median +- 8 robust standard deviations of
// the second half, so that one late outlier does not forbid every truncation; and the smallest d
// whose criterion is within a factor 1 + 0.8 / sqrt(n) of the best is taken, so that noise alone
// seldom costs steps.
//
// steady: the medians of the first and the last half of what is left differ by no more than 2 % of
// the median or 3 standard errors, whichever is more; the noise behind the standard error is that
// between neighbouring steps, so that a drift does not pass for noise.
//
// Never leaves out more than floor(n / 2) steps; an empty list gives {0, false}. UserError for NaN
// or infinite values and for a max_fraction outside 0 to 0.5. Time O(n), sorting apart.
Warmup find_warmup(std::span<const double> step_times, double max_fraction = 0.5);

// Autocorrelation of neighbouring values, -1 to 1; 0 for fewer than 3 values or constant ones.
double lag1_autocorrelation(std::span<const double> values);

// How many independent values tell as much about the mean as these: n / tau, tau from the initial
// monotone positive sequence (Geyer 1992, section 3.3), between 1 and n. Constant values: n. Empty:
// UserError. Time O(n x the lag at which correlation has died away).
double effective_sample_size(std::span<const double> values);

}  // namespace ljtrain::cnp
