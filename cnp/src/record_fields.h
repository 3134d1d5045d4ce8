// The members of each struct of cnp/record.h, once: reading and writing both walk them. A member
// that is missing here is lost, which record_test.cc notices.
#pragma once

#include <concepts>
#include <type_traits>

#include "cnp/record.h"

namespace ljtrain::cnp {

// T is Struct or const Struct.
template <typename T, typename Struct>
concept Of = std::same_as<std::remove_const_t<T>, Struct>;

template <Of<Failure> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("sentence", value.sentence);
  visit("rank", value.rank);
  visit("last_lines", value.last_lines);
}

template <Of<Source> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("format", value.format);
  visit("file", value.file);
  visit("bytes", value.bytes);
  visit("digest", value.digest);
  visit("imported", value.imported);
  visit("notes", value.notes);
}

template <Of<Proxy> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("is_proxy", value.is_proxy);
  visit("rule", value.rule);
  visit("scale", value.scale);
  visit("layers", value.layers);
  visit("of_layers", value.of_layers);
  visit("hidden_size", value.hidden_size);
}

template <Of<StepTime> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("median", value.median);
  visit("p05", value.p05);
  visit("p95", value.p95);
  visit("ci95", value.ci95);
  visit("ci95_unit", value.ci95_unit);
  visit("all", value.all);
}

template <Of<Breakdown> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("data", value.data);
  visit("forward", value.forward);
  visit("backward", value.backward);
  visit("communication_exposed", value.communication_exposed);
  visit("optimizer", value.optimizer);
  visit("other", value.other);
}

template <Of<Step> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("step", value.step);
  visit("seconds", value.seconds);
  visit("loss", value.loss);
  visit("warmup", value.warmup);
  visit("instrumented", value.instrumented);
  visit("seconds_per_rank", value.seconds_per_rank);
  visit("breakdown_s_per_rank", value.breakdown_s_per_rank);
  visit("peak_bytes_per_rank", value.peak_bytes_per_rank);
}

template <Of<Run> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("steps", value.steps);
  visit("warmup_steps", value.warmup_steps);
  visit("steady", value.steady);
  visit("median_s", value.median_s);
}

template <Of<WarmupChoice> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("method", value.method);
  visit("steps", value.steps);
  visit("steady", value.steady);
}

template <Of<PeakFlops> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("value", value.value);
  visit("source", value.source);
}

template <Of<PeakMemory> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("max", value.max);
  visit("per_rank", value.per_rank);
  visit("startup_max", value.startup_max);
  visit("startup_per_rank", value.startup_per_rank);
}

template <Of<PerRankBytes> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("max", value.max);
  visit("per_rank", value.per_rank);
}

template <Of<Components> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("accl", value.accl);
  visit("compile", value.compile);
  visit("recompute", value.recompute);
}

template <Of<Recompute> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("layers", value.layers);
  visit("of", value.of);
  visit("predicted_peak_bytes", value.predicted_peak_bytes);
  visit("measured_peak_bytes", value.measured_peak_bytes);
}

template <Of<Compile> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("graphs", value.graphs);
  visit("graph_breaks", value.graph_breaks);
  visit("recompilations", value.recompilations);
  visit("seconds", value.seconds);
}

template <Of<Collective> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("operation", value.operation);
  visit("calls", value.calls);
  visit("bytes", value.bytes);
  visit("seconds", value.seconds);
}

template <Of<Data> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("kind", value.kind);
  visit("file", value.file);
  visit("tokenizer", value.tokenizer);
  visit("digests", value.digests);
}

template <Of<Allocator> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("name", value.name);
  visit("library", value.library);
  visit("huge_pages", value.huge_pages);
  visit("kernel_huge_pages", value.kernel_huge_pages);
}

template <Of<Configuration> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("training_arguments", value.training_arguments);
  visit("deepspeed", value.deepspeed);
  visit("model_config", value.model_config);
  visit("environment", value.environment);
  visit("binding", value.binding);
  visit("allocator", value.allocator);
}

template <Of<Gpu> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("name", value.name);
  visit("memory_bytes", value.memory_bytes);
}

template <Of<Hardware> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("cpu_model", value.cpu_model);
  visit("cores", value.cores);
  visit("memory_bytes", value.memory_bytes);
  visit("numa_nodes", value.numa_nodes);
  visit("gpus", value.gpus);
}

template <Of<Git> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("commit", value.commit);
  visit("dirty", value.dirty);
}

template <Of<Environment> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("hardware", value.hardware);
  visit("os", value.os);
  visit("kernel", value.kernel);
  visit("versions", value.versions);
  visit("git", value.git);
}

template <Of<Overhead> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("ratio", value.ratio);
  visit("ci95", value.ci95);
  visit("blocks", value.blocks);
}

template <Of<Record> T, typename Visit>
void fields(T& value, Visit&& visit) {
  visit("record_id", value.record_id);
  visit("created", value.created);
  visit("status", value.status);
  visit("failure", value.failure);
  visit("source", value.source);
  visit("command", value.command);
  visit("model", value.model);
  visit("engine", value.engine);
  visit("proxy", value.proxy);
  visit("device", value.device);
  visit("precision", value.precision);
  visit("parameters", value.parameters);
  visit("trainable_parameters", value.trainable_parameters);
  visit("sharding", value.sharding);
  visit("ranks", value.ranks);
  visit("threads_per_rank", value.threads_per_rank);
  visit("zero_stage", value.zero_stage);
  visit("sequence_length", value.sequence_length);
  visit("micro_batch", value.micro_batch);
  visit("gradient_accumulation", value.gradient_accumulation);
  visit("global_tokens_per_step", value.global_tokens_per_step);
  visit("seed", value.seed);
  visit("stock_compile", value.stock_compile);
  visit("step_time_s", value.step_time_s);
  visit("runs", value.runs);
  visit("warmup", value.warmup);
  visit("tokens_per_s", value.tokens_per_s);
  visit("tokens_per_s_per_rank", value.tokens_per_s_per_rank);
  visit("model_tflops_per_rank", value.model_tflops_per_rank);
  visit("flops_convention", value.flops_convention);
  visit("flops_per_token", value.flops_per_token);
  visit("peak_flops", value.peak_flops);
  visit("mfu", value.mfu);
  visit("hfu", value.hfu);
  visit("peak_memory_bytes", value.peak_memory_bytes);
  visit("resident_peak_bytes", value.resident_peak_bytes);
  visit("huge_page_bytes", value.huge_page_bytes);
  visit("breakdown_s", value.breakdown_s);
  visit("breakdown_note", value.breakdown_note);
  visit("loss", value.loss);
  visit("components", value.components);
  visit("recompute", value.recompute);
  visit("compile", value.compile);
  visit("collectives", value.collectives);
  visit("data", value.data);
  visit("configuration", value.configuration);
  visit("environment", value.environment);
  visit("instrumentation_overhead", value.instrumentation_overhead);
  visit("tuning", value.tuning);
}

struct IgnoreField {
  void operator()(const char* /*name*/, const auto& /*member*/) const {}
};

template <typename T>
concept HasFields = requires(const T& value) { fields(value, IgnoreField()); };

}  // namespace ljtrain::cnp
