// The whole of `ljperf benchmark`.
#pragma once

#include "benchmark/options.h"

namespace ljtrain::ljperf {

// Plans, runs, records and reports. Returns the exit code (base::ExitCode). Throws UserError for
// bad input (nothing was started) and RunError when it could not start.
int run_benchmark(const BenchmarkOptions& options);

}  // namespace ljtrain::ljperf
