// The environment that makes the ranks the base stack (stock packages, autoload off, bound ranks,
// glibc's malloc), and the parts of ljtrain that were asked for on top of it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "benchmark/plan.h"

namespace ljtrain::ljperf {

// Whether the ranks' collectives are ACCL's: --with accl, or LJTRAIN_ACCL in `environment` and no
// --without accl.
bool is_accl_asked_for(const BenchmarkOptions& options, const base::Environment& environment);

// --with compile, or LJTRAIN_COMPILE without --without compile: layers compiled by ljtrain.
bool is_compile_asked_for(const BenchmarkOptions& options, const base::Environment& environment);

// --with recompute, or CHECKPOINT_OPTIMIZATION without --without recompute.
bool is_recompute_asked_for(const BenchmarkOptions& options, const base::Environment& environment);

// What differs from `environment` for the ranks: a value to set, or nullopt to remove. Adds to
// `notes` what a reader of the results should know about the user's own variables.
std::map<std::string, std::optional<std::string>> base_stack_variables(
    const BenchmarkPlan& plan, const base::Environment& environment,
    std::vector<std::string>& notes);

}  // namespace ljtrain::ljperf
