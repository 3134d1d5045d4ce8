// The proxy rule: a smaller model that stands for one which does not fit, or would take too long.
//
// At scale 1/d, hidden size, MLP size (dense, routed and shared), heads and KV heads are divided by
// d, the vocabulary too (rounded up); so hidden : ffn : vocabulary, head size, and heads per KV
// head stay. Experts, top-k, windows, norms and every other key stay. Depth shrinks more slowly:
// ceil(2 L / d) of L layers, at least 2, in whole periods of the layer pattern. Why:
// docs/decisions/proxy-rule.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "catalogue/memory_estimate.h"
#include "catalogue/model_config.h"

namespace ljtrain::ljperf {

struct Scale {
  enum class Kind : std::uint8_t { kFull, kFraction, kAuto };
  Kind kind = Kind::kAuto;
  std::int64_t divisor = 1;  // of kFraction: 8 for 1/8
};

// "full", "1/8" or "auto". Throws UserError on anything else.
Scale parse_scale(std::string_view text);

// What a step may cost on a host with `auto`: FLOPs of one rank's step, where every parameter
// counts kFlopsPerParameter more for its gathering, reduction and update. The default run of
// llama3-8b costs two fifths of it; chosen so that 25 steps end within three minutes on 2 cores.
inline constexpr double kHostStepBudget = 512e9;
inline constexpr double kFlopsPerParameter = 2000;

struct ProxyBudget {
  TrainingShape shape;
  std::optional<double> memory_limit_bytes;  // of one rank; nullopt: not checked
  // On hosts kHostStepBudget; nullopt (accelerators): only memory counts. Never a measured speed:
  // the same options give the same proxy everywhere, so that runs compare.
  std::optional<double> step_budget;
};

struct Proxy {
  bool is_proxy = false;
  std::string rule;          // one sentence
  std::int64_t divisor = 1;  // 8 at scale 1/8
  std::int64_t of_layers = 0;
  std::int64_t of_parameters = 0;
  ModelConfig config;  // what is trained; config.json is what transformers is given
  MemoryEstimate memory;
  double step_cost = 0;  // in the unit of kHostStepBudget
  std::vector<std::string> notes;
};

// The scales 1/d that `config` allows: every d that divides hidden size, MLP sizes, heads and KV
// heads; ascending, 1 first.
std::vector<std::int64_t> legal_divisors(const ModelConfig& config);

// `name` stands for the model in `rule` and in errors. `auto` gives the largest of: the model, then
// each legal scale in order, then the smallest scale with fewer and fewer layers, that meets the
// budget. Throws UserError when the scale is not legal (naming those that are), or when the result
// does not fit the memory limit (by how much, and what is largest).
Proxy make_proxy(const ModelConfig& config, std::string_view name, const Scale& scale,
                 const ProxyBudget& budget);

// {is_proxy, rule, scale, layers, of_layers, hidden_size, ffn_size, ..., parameters, notes}: the
// key `proxy` of `ljperf benchmark --json`.
base::OrderedJson proxy_json(const Proxy& proxy);

}  // namespace ljtrain::ljperf
