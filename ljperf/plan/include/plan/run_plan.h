#pragma once

#include "plan/options.h"

namespace ljtrain::ljperf {

// `ljperf plan`: prints the table or the JSON document, and writes the plot. Returns the exit code:
// 0, or 1 when the model does not fit. Throws UserError for bad input.
int run_plan(const PlanOptions& options);

}  // namespace ljtrain::ljperf
