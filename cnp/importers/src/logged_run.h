// What the logs of training programs have in common, and the record it becomes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cnp/record.h"
#include "importers/import.h"

namespace ljtrain::cnp {

struct LoggedStep {
  std::int64_t step = 0;        // from 0
  double seconds = kNotFinite;  // of a step, mean since the entry before; NaN: unknown
  std::optional<double> loss;   // as printed, NaN too; nullopt: not printed
  std::optional<double> tokens_per_s_per_rank;
  std::optional<double> tflops_per_rank;
  std::optional<double> mfu;  // fraction
};

// Everything that is unknown is nullopt or empty.
struct LoggedRun {
  std::vector<LoggedStep> steps;  // in rising order
  StatedFacts facts;
  std::optional<std::int64_t> global_batch;            // sequences a step, over all ranks
  std::optional<std::int64_t> global_tokens_per_step;  // where it is known otherwise
  std::optional<std::int64_t> parameters;
  std::optional<std::int64_t> layers;
  std::optional<std::int64_t> hidden_size;
  std::optional<std::int64_t> seed;
  std::optional<std::uint64_t> peak_memory_bytes;
  std::optional<double> peak_flops;
  std::string flops_convention;
  std::string gpu;
  std::optional<std::uint64_t> gpu_memory_bytes;
  std::vector<std::string> notes;
  base::OrderedJson details = nullptr;  // further keys of the record's source
};

// Takes over what the user states; UserError, naming `file`, where the file says otherwise.
void add_stated_facts(const StatedFacts& stated, const std::string& file, LoggedRun& run);

// Adds an entry unless its step has been seen: several ranks print the same, and a training that is
// resumed repeats. Returns whether it was added.
bool add_step(LoggedRun& run, const LoggedStep& step);

// The record: warm-up found as ljperf finds it, medians of what follows it. UserError, naming the
// file, when there is no step.
Record record_of(const LoggedRun& run, Source source, const std::string& created);

}  // namespace ljtrain::cnp
