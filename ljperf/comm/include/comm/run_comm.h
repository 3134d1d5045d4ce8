// `ljperf comm`: measures collective libraries side by side.
#pragma once

#include "comm/options.h"

namespace ljtrain::ljperf {

// Returns the exit code: 0 done, 1 a library failed or computed wrong values, 130 interrupted.
// Throws UserError for bad input, RunError when nothing could be started.
int run_comm(const CommOptions& options);

}  // namespace ljtrain::ljperf
