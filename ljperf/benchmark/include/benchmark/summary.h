// From steps to figures: fills the record of a benchmark.
#pragma once

#include "benchmark/plan.h"
#include "benchmark/run_collector.h"
#include "cnp/record.h"

namespace ljtrain::ljperf {

// All that is known before the first run.
cnp::Record start_record(const BenchmarkPlan& plan);

// Adds one run, finished or not: finds its warm-up and keeps every step.
void add_run(cnp::Record& record, const BenchmarkPlan& plan, const RunCollector& run);

// Computes the figures over all runs. An impossible result (MFU above 100 %) makes a completed
// record a failed one.
void finish_record(cnp::Record& record, const BenchmarkPlan& plan);

// How `median` seconds divide over the phases: in the shares of the middle quarter of the steps
// that have a breakdown (at least the middle one or two by their time), so the parts add up to
// `median`. nullopt when no step has a breakdown.
std::optional<cnp::Breakdown> breakdown_of(double median,
                                           const std::vector<const cnp::Step*>& steps);

}  // namespace ljtrain::ljperf
