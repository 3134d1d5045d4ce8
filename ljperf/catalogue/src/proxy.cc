#include "catalogue/proxy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "catalogue/flops.h"
#include "catalogue/parameters.h"
#include "layer_pattern.h"
#include "shrink.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::int64_t kLeastLayers = 2;

double cost_of_step(const ModelConfig& config, const TrainingShape& shape) {
  std::int64_t tokens = shape.seq * shape.micro_batch;
  return model_flops_per_step(config, shape.seq, tokens, FlopsConvention::kMegatron) +
         kFlopsPerParameter * static_cast<double>(count_parameters(config).total);
}

// The model at that scale and depth; `layers` is one that round_to_pattern gives.
Proxy proxy_of(const ModelConfig& config, std::string_view name, std::int64_t divisor,
               std::int64_t layers, const TrainingShape& shape) {
  Proxy proxy;
  proxy.divisor = divisor;
  proxy.of_layers = config.layer_count();
  proxy.of_parameters = count_parameters(config).total;
  proxy.is_proxy = divisor != 1 || layers != proxy.of_layers;
  if (!proxy.is_proxy) {
    proxy.config = config;
    proxy.rule = fmt::format("the whole model {}", name);
  } else {
    LayerPattern pattern = find_pattern(config.layers);
    proxy.config =
        shrink(config, divisor, choose_layers(pattern, layers, proxy.of_layers), pattern.periodic);
    std::string width =
        divisor == 1 ? "full width"
                     : fmt::format(
                           "1/{} (hidden size, {}, vocabulary, heads and KV heads divided by "
                           "{}; head size and heads per KV head kept)",
                           divisor, config.has_experts() ? "MLPs and experts" : "MLP", divisor);
    proxy.rule = fmt::format("{} at {}, {} of {} layers", name, width, layers, proxy.of_layers);
  }
  proxy.notes = proxy.config.notes;
  proxy.memory = estimate_memory(proxy.config, shape);
  proxy.step_cost = cost_of_step(proxy.config, shape);
  return proxy;
}

// Depth at scale 1/d: half as fast as width, whole at 1/1 and 1/2.
std::int64_t depth_at(const ModelConfig& config, std::int64_t divisor) {
  std::int64_t layers = config.layer_count();
  std::int64_t wanted = std::min(layers, (2 * layers + divisor - 1) / divisor);
  return round_to_pattern(find_pattern(config.layers), wanted, kLeastLayers, layers);
}

bool fits_memory(const Proxy& proxy, const ProxyBudget& budget) {
  return !budget.memory_limit_bytes || proxy.memory.total() <= *budget.memory_limit_bytes;
}

bool within_budget(const Proxy& proxy, const ProxyBudget& budget) {
  return fits_memory(proxy, budget) &&
         (!budget.step_budget || proxy.step_cost <= *budget.step_budget);
}

Proxy choose_automatically(const ModelConfig& config, std::string_view name,
                           const ProxyBudget& budget) {
  std::int64_t smallest = 1;
  for (std::int64_t divisor : legal_divisors(config)) {
    Proxy proxy = proxy_of(config, name, divisor, depth_at(config, divisor), budget.shape);
    if (within_budget(proxy, budget)) {
      return proxy;
    }
    smallest = divisor;
  }
  // No width is small enough (a KV head cannot be divided): give up depth, a period at a time.
  LayerPattern pattern = find_pattern(config.layers);
  std::int64_t of_layers = config.layer_count();
  auto at = [&](std::int64_t periods) {
    std::int64_t layers =
        round_to_pattern(pattern, periods * pattern.period, kLeastLayers, of_layers);
    return proxy_of(config, name, smallest, layers, budget.shape);
  };
  // Cost and memory grow with depth: search by halves for the deepest that fits.
  Proxy best = at(0);
  std::int64_t fits = 0;
  std::int64_t too_many = (depth_at(config, smallest) + pattern.period - 1) / pattern.period;
  while (too_many - fits > 1) {
    std::int64_t periods = fits + (too_many - fits) / 2;
    Proxy proxy = at(periods);
    if (within_budget(proxy, budget)) {
      best = std::move(proxy);
      fits = periods;
    } else {
      too_many = periods;
    }
  }
  return best;
}

std::string scale_list(const std::vector<std::int64_t>& divisors) {
  std::vector<std::string> scales{"full"};
  for (std::int64_t divisor : divisors) {
    if (divisor != 1) {
      scales.push_back(fmt::format("1/{}", divisor));
    }
  }
  return fmt::format("{}", fmt::join(scales, ", "));
}

}  // namespace

Scale parse_scale(std::string_view text) {
  if (text == "full" || text == "1" || text == "1/1") {
    return {.kind = Scale::Kind::kFull};
  }
  if (text == "auto") {
    return {.kind = Scale::Kind::kAuto};
  }
  std::int64_t divisor = 0;
  const char* end = text.data() + text.size();
  if (text.starts_with("1/")) {
    auto [rest, error] = std::from_chars(text.data() + 2, end, divisor);
    if (error != std::errc() || rest != end) {
      divisor = 0;
    }
  }
  if (divisor < 1) {
    throw base::user_error("scale `{}`: write full, auto or a fraction such as 1/8", text);
  }
  return {.kind = Scale::Kind::kFraction, .divisor = divisor};
}

std::vector<std::int64_t> legal_divisors(const ModelConfig& config) {
  std::int64_t common = 0;  // gcd(0, x) is x, so sizes the model does not have do not count
  for (std::int64_t size : {config.hidden_size, config.ffn_size, config.moe.ffn_size,
                            config.moe.shared_ffn_size, config.heads, config.kv_heads}) {
    common = std::gcd(common, size);
  }
  std::vector<std::int64_t> divisors;
  for (std::int64_t divisor = 1; divisor <= common; ++divisor) {
    if (common % divisor == 0) {
      divisors.push_back(divisor);
    }
  }
  return divisors;
}

Proxy make_proxy(const ModelConfig& config, std::string_view name, const Scale& scale,
                 const ProxyBudget& budget) {
  Proxy proxy;
  if (scale.kind == Scale::Kind::kAuto) {
    proxy = choose_automatically(config, name, budget);
  } else {
    std::vector<std::int64_t> divisors = legal_divisors(config);
    std::int64_t divisor = scale.kind == Scale::Kind::kFull ? 1 : scale.divisor;
    if (std::ranges::find(divisors, divisor) == divisors.end()) {
      throw base::user_error(
          "scale 1/{}: {} has {} heads, {} KV heads, hidden size {} and MLP size {}, and not all "
          "of "
          "them can be divided by {}; scales that work: {}",
          divisor, name, config.heads, config.kv_heads, config.hidden_size, config.ffn_size,
          divisor, scale_list(divisors));
    }
    proxy = proxy_of(config, name, divisor, depth_at(config, divisor), budget.shape);
  }
  if (budget.memory_limit_bytes && !fits_memory(proxy, budget)) {
    throw base::user_error(
        "{} does not fit: {}; use more ranks, a shorter sequence, a higher ZeRO stage or a smaller "
        "--scale ({})",
        proxy.is_proxy ? proxy.rule : fmt::format("{} at full scale", name),
        describe_shortfall(proxy.memory, *budget.memory_limit_bytes),
        scale_list(legal_divisors(config)));
  }
  if (budget.step_budget && proxy.step_cost > *budget.step_budget) {
    proxy.notes.push_back(
        fmt::format("a step costs {:.2f} times what is usual on hosts, so this run takes longer",
                    proxy.step_cost / *budget.step_budget));
  }
  return proxy;
}

base::OrderedJson proxy_json(const Proxy& proxy) {
  const ModelConfig& config = proxy.config;
  base::OrderedJson json{
      {"is_proxy", proxy.is_proxy},
      {"rule", proxy.rule},
      {"scale", proxy.divisor == 1 ? "full" : fmt::format("1/{}", proxy.divisor)},
      {"layers", config.layer_count()},
      {"of_layers", proxy.of_layers},
      {"hidden_size", config.hidden_size},
      {"ffn_size", config.ffn_size},
      {"heads", config.heads},
      {"kv_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"experts", config.moe.experts},
      {"experts_per_token", config.moe.top_k},
      {"moe_ffn_size", config.moe.ffn_size},
      {"parameters", count_parameters(config).total},
      {"of_parameters", proxy.of_parameters},
      {"notes", proxy.notes}};
  return json;
}

}  // namespace ljtrain::ljperf
