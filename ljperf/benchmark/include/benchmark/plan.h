// What a benchmark will do on this machine: everything is decided and checked here, before anything
// starts.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "benchmark/host_allocator.h"
#include "benchmark/options.h"
#include "catalogue/flops.h"
#include "catalogue/proxy.h"
#include "launcher/hardware.h"

namespace ljtrain::ljperf {

struct BenchmarkPlan {
  BenchmarkOptions options;
  Hardware hardware;
  std::string engine;  // deepspeed, fsdp, ddp
  std::string model;   // name in the catalogue, or the config file's folder or name
  bool on_gpus = false;
  int ranks = 1;           // of all hosts
  int ranks_per_node = 1;  // of a host
  int nodes = 1;
  int threads_per_rank = 1;
  std::vector<std::vector<int>> placement;  // of this host's ranks
  std::optional<int> zero_stage;            // engine deepspeed only
  int seq = 0;
  int micro_batch = 1;
  int gradient_accumulation = 1;
  Proxy proxy;
  FlopsConvention flops_convention = FlopsConvention::kMegatron;
  bool full_checkpointing = true;
  std::string precision;            // bf16, fp16 or fp32
  std::optional<int> fixed_warmup;  // nullopt: found from the data
  int steps_per_run = 0;            // warm-up included
  base::OrderedJson worker;         // WORKER.json; output_dir is filled in when a run starts
  bool accl = false;                // collectives by ACCL
  bool compile = false;             // layers compiled by ljtrain
  bool recompute = false;           // layers recomputed as ljtrain plans it
  HostAllocator allocator;
  // What is set (or, without a value, removed) in the environment of every rank.
  std::map<std::string, std::optional<std::string>> base_stack;
  std::filesystem::path python;
  base::Json preflight;           // what the Python environment says of itself
  double memory_limit_bytes = 0;  // that one rank may use
  std::string memory_limit_source;
  std::vector<std::string> notes;  // what a reader of the results should know

  // The environment of every rank.
  base::Environment environment() const;
  // Tokens of one step, all ranks together.
  std::int64_t tokens_per_step() const;
};

// Decides everything. Throws UserError for whatever cannot be done.
BenchmarkPlan make_plan(const BenchmarkOptions& options);

// All that would be done, as text for people (`--dry-run`) or as a document (`--dry-run --json`).
std::string describe(const BenchmarkPlan& plan);
base::OrderedJson to_json(const BenchmarkPlan& plan);

}  // namespace ljtrain::ljperf
