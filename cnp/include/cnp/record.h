// The record of one benchmark invocation, as a type. cnp/schema/record.schema.json owns the format
// and describes each key; docs/records.md is the same for people. Times are seconds, memory bytes,
// unless a name says otherwise. Members bear the names of the JSON keys.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "cnp/statistics.h"

namespace ljtrain::cnp {

inline constexpr int kRecordSchemaVersion = 1;
// Stands for "not finite" in C++ where JSON has null.
inline constexpr double kNotFinite = std::numeric_limits<double>::quiet_NaN();

// Keys of an object that this version does not know, null when there are none: kept when a record
// is read and written again, and the place for a writer's own additions.
using Extra = base::OrderedJson;

enum class Status { kCompleted, kInterrupted, kFailed };

struct Failure {
  std::string sentence;
  std::optional<int> rank;
  std::vector<std::string> last_lines;
  Extra extra = nullptr;
};

// Where an imported record comes from.
struct Source {
  std::string format;  // torchtitan, megatron, trainer_state
  std::string file;
  std::uint64_t bytes = 0;
  std::string digest;
  std::string imported;
  std::vector<std::string> notes;
  Extra extra = nullptr;
};

struct Proxy {
  bool is_proxy = false;
  std::string rule;
  std::string scale = "full";
  int layers = 0;
  int of_layers = 0;
  int hidden_size = 0;
  Extra extra = nullptr;
};

struct StepTime {
  std::optional<double> median;
  std::optional<double> p05;
  std::optional<double> p95;
  std::optional<Interval> ci95;
  std::string ci95_unit = "run";
  std::vector<double> all;
  Extra extra = nullptr;
};

struct Breakdown {
  double data = 0;
  double forward = 0;
  double backward = 0;
  double communication_exposed = 0;
  double optimizer = 0;
  double other = 0;
  Extra extra = nullptr;
};

struct Step {
  int step = 0;
  double seconds = 0;  // kNotFinite: unknown, in an imported record
  double loss = kNotFinite;
  bool warmup = false;
  bool instrumented = false;
  std::vector<double> seconds_per_rank;
  std::vector<Breakdown> breakdown_s_per_rank;
  std::vector<std::uint64_t> peak_bytes_per_rank;
  Extra extra = nullptr;
};

struct Run {
  std::vector<Step> steps;
  int warmup_steps = 0;
  bool steady = false;
  std::optional<double> median_s;
  Extra extra = nullptr;
};

struct WarmupChoice {
  std::string method = "auto";  // auto, fixed
  int steps = 0;
  bool steady = false;
  Extra extra = nullptr;
};

struct PeakFlops {
  std::optional<double> value;  // FLOP/s a rank
  std::string source;
  Extra extra = nullptr;
};

struct PeakMemory {
  std::optional<std::uint64_t> max;
  std::vector<std::uint64_t> per_rank;
  std::optional<std::uint64_t> startup_max;
  std::vector<std::uint64_t> startup_per_rank;
  Extra extra = nullptr;
};

struct PerRankBytes {
  std::optional<std::uint64_t> max;
  std::vector<std::uint64_t> per_rank;
  Extra extra = nullptr;
};

struct Components {
  bool accl = false;
  bool compile = false;
  bool recompute = false;
  Extra extra = nullptr;
};

struct Recompute {
  int layers = 0;
  int of = 0;
  std::optional<std::uint64_t> predicted_peak_bytes;
  std::optional<std::uint64_t> measured_peak_bytes;
  Extra extra = nullptr;
};

struct Compile {
  std::int64_t graphs = 0;
  std::int64_t graph_breaks = 0;
  std::int64_t recompilations = 0;
  double seconds = 0;
  Extra extra = nullptr;
};

struct Collective {
  std::string operation;
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
  Extra extra = nullptr;
};

struct Data {
  std::string kind = "mock";  // mock, text, jsonl
  std::optional<std::string> file;
  std::optional<std::string> tokenizer;
  std::vector<std::string> digests;
  Extra extra = nullptr;
};

// The malloc of the ranks: glibc, jemalloc or tcmalloc.
struct Allocator {
  std::string name = "glibc";
  std::optional<std::string> library;            // what was preloaded
  bool huge_pages = false;                       // whether transparent huge pages were asked for
  std::optional<std::string> kernel_huge_pages;  // always, madvise, never
  Extra extra = nullptr;
};

struct Configuration {
  base::OrderedJson training_arguments = base::OrderedJson::object();
  base::OrderedJson deepspeed = nullptr;     // object or null
  base::OrderedJson model_config = nullptr;  // object or null
  std::map<std::string, std::string> environment;
  std::vector<std::string> binding;
  std::optional<Allocator> allocator;  // nullopt in records of earlier releases
  Extra extra = nullptr;
};

struct Gpu {
  std::string name;
  std::optional<std::uint64_t> memory_bytes;
  Extra extra = nullptr;
};

struct Hardware {
  std::string cpu_model;
  int cores = 0;
  std::uint64_t memory_bytes = 0;
  int numa_nodes = 0;
  std::vector<Gpu> gpus;
  Extra extra = nullptr;
};

struct Git {
  std::string commit;
  bool dirty = false;
  Extra extra = nullptr;
};

struct Environment {
  Hardware hardware;
  std::string os;
  std::string kernel;
  std::map<std::string, std::string> versions;
  std::optional<Git> git;
  Extra extra = nullptr;
};

struct Overhead {
  double ratio = 1;  // on / off
  std::optional<Interval> ci95;
  std::uint64_t blocks = 0;
  Extra extra = nullptr;
};

struct Record {
  std::string record_id;  // new_record_id()
  std::string created;    // iso8601_utc()
  Status status = Status::kCompleted;
  std::optional<Failure> failure;
  std::optional<Source> source;  // nullopt: measured by ljperf
  std::vector<std::string> command;
  std::string model;
  std::string engine;
  Proxy proxy;
  std::string device = "cpu";
  std::string precision = "bf16";
  std::optional<std::uint64_t> parameters;
  std::optional<std::uint64_t> trainable_parameters;
  std::optional<std::string> sharding;
  int ranks = 1;
  int threads_per_rank = 1;
  std::optional<int> zero_stage;
  int sequence_length = 1;
  int micro_batch = 1;
  int gradient_accumulation = 1;
  std::int64_t global_tokens_per_step = 1;
  std::optional<std::uint64_t> seed;
  std::string stock_compile = "none";
  StepTime step_time_s;
  std::vector<Run> runs;
  WarmupChoice warmup;
  std::optional<double> tokens_per_s;
  std::optional<double> tokens_per_s_per_rank;
  std::optional<double> model_tflops_per_rank;
  std::string flops_convention;
  std::optional<double> flops_per_token;
  PeakFlops peak_flops;
  std::optional<double> mfu;
  std::optional<double> hfu;
  PeakMemory peak_memory_bytes;
  PerRankBytes resident_peak_bytes;
  PerRankBytes huge_page_bytes;
  std::optional<Breakdown> breakdown_s;
  std::string breakdown_note;
  std::vector<double> loss;
  Components components;
  Recompute recompute;
  std::optional<Compile> compile;
  std::vector<Collective> collectives;
  Data data;
  Configuration configuration;
  Environment environment;
  std::optional<Overhead> instrumentation_overhead;
  base::OrderedJson tuning = base::OrderedJson::object();
  Extra extra = nullptr;

  // Keys, dotted ("environment.os"), that are null in the document although the member has no way to
  // say so: 0, "" or false there means nothing. Empty unless imported; see unknowable_keys().
  std::set<std::string> unknown;
  bool knows(const std::string& key) const { return !unknown.contains(key); }
};

// All keys that `unknown` may hold.
const std::vector<std::string>& unknowable_keys();

// The document, keys in the order above. JSON has no NaN or infinity: such a value becomes null,
// and a completed record that holds one becomes a failed one whose sentence names the first. Bytes
// that are no UTF-8 (a worker's log) become U+FFFD, so the result always prints.
base::OrderedJson to_json(const Record& record);

// The document's `kind`: "benchmark" when it names none, "collectives", or what a later version wrote.
std::string kind_of(const base::Json& document);

// Checks a record of any kind. Throws what from_json throws.
void check_record(const base::JsonDocument& document);

// Reads a record and checks it against the schema. UserError "FILE:LINE: key `a.b` ..." for what is
// missing or wrong, and one that says to upgrade for a schema_version of the future. Unknown keys
// are kept in `extra`. UserError, too, for a record of another kind than a benchmark.
Record from_json(const base::JsonDocument& document);

}  // namespace ljtrain::cnp
