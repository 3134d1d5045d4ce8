// What differs in the configuration of two records, and whether that makes them another task.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "cnp/comparison.h"
#include "record_fields.h"

namespace ljtrain::cnp {
namespace {

using base::Json;
using base::OrderedJson;

constexpr std::size_t kLongestValue = 60;

// Another task: what is computed, on how much data, in which arithmetic, on which machine.
const std::set<std::string>& unlike_keys() {
  static const std::set<std::string> keys = {
      "model", "task", "proxy.is_proxy", "proxy.rule", "proxy.scale", "proxy.layers",
      "proxy.of_layers", "proxy.hidden_size", "device", "precision", "parameters",
      "trainable_parameters", "ranks", "sequence_length", "micro_batch", "gradient_accumulation",
      "global_tokens_per_step", "data.kind", "data.file", "data.tokenizer",
      // Ranks that exchange nothing train nothing.
      "configuration.collectives",
      // What the ranks meet over: not on which hosts.
      "configuration.launcher.name", "configuration.launcher.nodes",
      "configuration.launcher.ranks_per_node", "environment.hardware.cpu_model",
      "environment.hardware.cores", "environment.hardware.gpus"};
  return keys;
}

// Of those, what must be known: an import may leave out the rest.
const std::set<std::string>& needed_keys() {
  static const std::set<std::string> keys = {"model", "device", "precision", "sequence_length",
                                             "global_tokens_per_step"};
  return keys;
}

// What repeats of one configuration have in common, beside the task.
const std::set<std::string>& repeat_keys() {
  static const std::set<std::string> keys = {"engine",      "components",       "stock_compile",
                                             "zero_stage",  "threads_per_rank", "recompute.layers",
                                             "recompute.of"};
  return keys;
}

// Measurements, names of the record itself, and what follows from other keys.
const std::set<std::string>& ignored_keys() {
  static const std::set<std::string> keys = {"schema_version",
                                             "record_id",
                                             "created",
                                             "status",
                                             "failure",
                                             "command",
                                             "step_time_s",
                                             "runs",
                                             "warmup",
                                             "tokens_per_s",
                                             "tokens_per_s_per_rank",
                                             "model_tflops_per_rank",
                                             "flops_per_token",
                                             "peak_flops",
                                             "mfu",
                                             "hfu",
                                             "peak_memory_bytes",
                                             "resident_peak_bytes",
                                             "breakdown_s",
                                             "breakdown_note",
                                             "loss",
                                             "compile",
                                             "collectives",
                                             "recompute.predicted_peak_bytes",
                                             "recompute.measured_peak_bytes",
                                             "instrumentation_overhead"};
  return keys;
}

bool listed(const std::set<std::string>& keys, const std::string& key) {
  for (std::string prefix = key;;) {
    if (keys.contains(prefix)) return true;
    std::size_t dot = prefix.rfind('.');
    if (dot == std::string::npos) return false;
    prefix.resize(dot);
  }
}

// "a.b" -> value, objects taken apart; an array is one value.
void flatten(const OrderedJson& json, const std::string& path,
             std::map<std::string, OrderedJson>& into) {
  if (json.is_object()) {
    for (const auto& [name, value] : json.items()) {
      flatten(value, path.empty() ? name : path + "." + name, into);
    }
  } else if (!listed(ignored_keys(), path)) {
    into[path] = json;
  }
}

// What records that were written before these keys were there mean by leaving them out. An import
// is of a real training, too, but its launcher is not known.
void add_defaults(const Record& record, std::map<std::string, OrderedJson>& flat) {
  flat.emplace("configuration.collectives", "real");
  if (!record.source.has_value()) {
    flat.emplace("configuration.launcher.name", "local");
    flat.emplace("configuration.launcher.nodes", 1);
  }
}

std::string shown(const OrderedJson& value) {
  return base::printable(value.is_string() ? value.get<std::string>() : value.dump(),
                         kLongestValue);
}

}  // namespace

std::vector<Difference> differences(const Record& a, const Record& b) {
  std::map<std::string, OrderedJson> of_a;
  std::map<std::string, OrderedJson> of_b;
  flatten(to_json(a), "", of_a);
  flatten(to_json(b), "", of_b);
  add_defaults(a, of_a);
  add_defaults(b, of_b);
  std::set<std::string> keys;
  for (const auto& [key, value] : of_a) keys.insert(key);
  for (const auto& [key, value] : of_b) keys.insert(key);
  std::vector<Difference> found;
  for (const std::string& key : keys) {
    auto in_a = of_a.find(key);
    auto in_b = of_b.find(key);
    bool has_a = in_a != of_a.end();
    bool has_b = in_b != of_b.end();
    if (has_a && has_b && in_a->second == in_b->second) continue;
    bool known = has_a && has_b && !in_a->second.is_null() && !in_b->second.is_null();
    found.push_back({.key = base::printable(key, kLongestValue),
                     .a = has_a ? shown(in_a->second) : "",
                     .b = has_b ? shown(in_b->second) : "",
                     .unlike = known ? listed(unlike_keys(), key) : needed_keys().contains(key)});
  }
  std::stable_partition(found.begin(), found.end(),
                        [](const Difference& difference) { return difference.unlike; });
  return found;
}

const Difference* no_repeat(std::span<const Difference> differences) {
  for (const Difference& difference : differences) {
    if (difference.unlike || listed(repeat_keys(), difference.key)) return &difference;
  }
  return nullptr;
}

std::string unlike_sentence(std::span<const Difference> differences) {
  std::size_t unlike = 0;
  for (const Difference& difference : differences) unlike += difference.unlike ? 1 : 0;
  if (unlike == 0) return "";
  const Difference& first = differences.front();
  std::string sentence = fmt::format("`{}` differs ({} and {})", first.key, first.a, first.b);
  if (unlike == 2) sentence += ", and one more key does";
  if (unlike > 2) sentence += fmt::format(", and {} more keys do", unlike - 1);
  return sentence;
}

}  // namespace ljtrain::cnp
