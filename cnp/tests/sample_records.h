// Records that tests share: one with every member set, and the forms that differ from it.
#pragma once

#include <vector>

#include "cnp/record.h"

namespace ljtrain::cnp {

inline Step sample_step(int number, double seconds, double loss) {
  Breakdown parts{.data = 0.01,
                  .forward = 0.4,
                  .backward = 0.8,
                  .communication_exposed = 0.2,
                  .optimizer = 0.1,
                  .other = 0.02};
  return {.step = number,
          .seconds = seconds,
          .loss = loss,
          .warmup = number < 1,
          .instrumented = true,
          .seconds_per_rank = {seconds, seconds - 0.01},
          .breakdown_s_per_rank = {parts, parts},
          .peak_bytes_per_rank = {1'000'000, 1'000'001}};
}

// What was measured, in a record without it.
inline void add_measurements(Record& record) {
  record.step_time_s.median = 1.5;
  record.step_time_s.p05 = 1.4;
  record.step_time_s.p95 = 1.75;
  record.step_time_s.ci95 = Interval{1.45, 1.55};
  record.step_time_s.all = {1.5, 1.5, 1.4, 1.75};
  Run run{.steps = {sample_step(0, 9.5, 9.7), sample_step(1, 1.5, 9.6), sample_step(2, 1.5, 9.2)},
          .warmup_steps = 1,
          .steady = true,
          .median_s = 1.5};
  record.runs = {run, run};
  record.warmup = {.method = "auto", .steps = 1, .steady = true};
  record.tokens_per_s = 682.5;
  record.tokens_per_s_per_rank = 341.25;
  record.model_tflops_per_rank = 0.05;
  record.mfu = 0.21;
  record.hfu = 0.28;
  record.peak_memory_bytes = {.max = 1'000'001,
                              .per_rank = {1'000'000, 1'000'001},
                              .startup_max = 7,
                              .startup_per_rank = {7, 6}};
  record.resident_peak_bytes = {.max = 3'000'000'000, .per_rank = {3'000'000'000, 2'900'000'000}};
  record.huge_page_bytes = {.max = 1'000'000'000, .per_rank = {1'000'000'000, 900'000'000}};
  record.breakdown_s = run.steps[0].breakdown_s_per_rank[0];
  record.breakdown_note = "mean over ranks";
  record.loss = {9.7, 9.6, 9.2};
  record.instrumentation_overhead =
      Overhead{.ratio = 1.004, .ci95 = Interval{0.99, 1.01}, .blocks = 8};
}

inline Record full_record() {
  Record record;
  record.record_id = "20261130T120102Z-llama3-8b-0123abcd";
  record.created = "2026-11-30T12:01:02Z";
  record.command = {"ljperf", "benchmark", "--model", "deepspeed/llama3-8b"};
  record.model = "llama3-8b";
  record.engine = "deepspeed";
  record.proxy = {.is_proxy = true,
                  .rule = "width by 1/8, layers by 1/4",
                  .scale = "1/8",
                  .layers = 8,
                  .of_layers = 32,
                  .hidden_size = 512};
  record.parameters = 45'000'000;
  record.trainable_parameters = 45'000'000;
  record.sharding = "zero3";
  record.ranks = 2;
  record.zero_stage = 3;
  record.sequence_length = 512;
  record.global_tokens_per_step = 1024;
  record.seed = 1234;
  record.flops_convention = "megatron";
  record.flops_per_token = 3.1e8;
  record.peak_flops = {.value = 2.5e11,
                       .source = "GEMM in bf16, 2048 x 2048, on all ranks at once"};
  record.recompute = {
      .layers = 8, .of = 8, .predicted_peak_bytes = 999'999, .measured_peak_bytes = 1'000'001};
  record.compile = Compile{.graphs = 2, .graph_breaks = 1, .recompilations = 3, .seconds = 12.5};
  record.components = {.accl = true, .compile = true, .recompute = false};
  record.collectives = {{.operation = "all_gather", .calls = 17, .bytes = 1'000, .seconds = 0.25}};
  record.data = {
      .kind = "text", .file = "corpus.txt", .tokenizer = "tokenizer", .digests = {"0f", "1e"}};
  record.configuration.training_arguments = {{"bf16", true}, {"learning_rate", 3e-4}};
  record.configuration.deepspeed = {{"zero_optimization", {{"stage", 3}}}};
  record.configuration.model_config = {{"hidden_size", 512}};
  record.configuration.environment = {{"OMP_NUM_THREADS", "1"}};
  record.configuration.binding = {"0", "1"};
  record.configuration.allocator = Allocator{.name = "jemalloc",
                                             .library = "/usr/lib/libjemalloc.so.2",
                                             .huge_pages = true,
                                             .kernel_huge_pages = "madvise"};
  record.environment.hardware = {.cpu_model = "A CPU",
                                 .cores = 2,
                                 .memory_bytes = 25'769'803'776,
                                 .numa_nodes = 1,
                                 .gpus = {{.name = "A GPU", .memory_bytes = 85'899'345'920}}};
  record.environment.os = "Debian GNU/Linux 12";
  record.environment.kernel = "6.1.0";
  record.environment.versions = {{"torch", "2.13.0"}, {"python", "3.11.2"}};
  record.environment.git = Git{.commit = "0123456789abcdef", .dirty = true};
  record.tuning = {{"gemm_threads", 1}};
  add_measurements(record);
  return record;
}

// The full one; one run and most things unknown; interrupted before the first step; failed.
inline std::vector<Record> sample_records() {
  Record full = full_record();
  Record sparse = full;
  sparse.runs.pop_back();
  sparse.step_time_s.ci95.reset();
  sparse.zero_stage.reset();
  sparse.compile.reset();
  sparse.mfu.reset();
  sparse.hfu.reset();
  sparse.peak_flops.value.reset();
  sparse.breakdown_s.reset();
  sparse.instrumentation_overhead.reset();
  sparse.environment.git.reset();
  sparse.configuration.deepspeed = nullptr;
  Record interrupted = full;
  interrupted.status = Status::kInterrupted;
  interrupted.failure = Failure{
      .sentence = "interrupted before the first step", .rank = std::nullopt, .last_lines = {}};
  interrupted.runs.clear();
  interrupted.step_time_s = {};
  interrupted.tokens_per_s.reset();
  interrupted.tokens_per_s_per_rank.reset();
  interrupted.loss.clear();
  Record failed = full;
  failed.status = Status::kFailed;
  failed.failure = Failure{.sentence = "rank 1 was killed", .rank = 1, .last_lines = {"a", "b"}};
  failed.loss.back() = kNotFinite;
  return {full, sparse, interrupted, failed};
}

}  // namespace ljtrain::cnp
