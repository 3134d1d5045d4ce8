// What the index keeps of a record: enough to list, filter and choose. The record file is the truth.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cnp/statistics.h"

namespace ljtrain::cnp {

// Times are seconds, memory bytes. nullopt: the record does not say. Strings are cut to 200 bytes.
struct Summary {
  std::string id;       // the file's name without .json
  std::string created;  // ISO 8601, UTC
  std::string kind;     // "benchmark", "collectives"
  std::string status;   // "completed", "interrupted", "failed"
  std::optional<std::string> failure;
  std::optional<std::string> source;  // "torchtitan", ...: imported; nullopt: measured by ljperf
  std::optional<std::string> source_digest;
  std::optional<std::string> model;
  std::optional<std::string> engine;
  std::optional<std::string> device;
  std::optional<std::string> precision;
  std::optional<std::string> scale;  // of the proxy: "1/8", "full"
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> zero_stage;
  std::optional<std::int64_t> sequence_length;
  std::optional<std::int64_t> micro_batch;
  std::optional<double> step_median_s;
  std::optional<Interval> step_ci95_s;
  std::optional<double> tokens_per_s;
  std::optional<double> mfu;
  std::optional<std::int64_t> peak_memory_bytes;
  std::optional<std::string> components;  // "accl compile recompute": those that were active
  std::vector<std::string> tags;          // sorted
  std::optional<std::string> note;
};

// A row of `cnp list --json`.
base::OrderedJson to_json(const Summary& summary);

}  // namespace ljtrain::cnp
