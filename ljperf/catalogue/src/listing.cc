#include "catalogue/listing.h"

#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "catalogue/catalogue.h"
#include "catalogue/flops.h"
#include "catalogue/lookup.h"
#include "catalogue/parameters.h"

namespace ljtrain::ljperf {
namespace {

constexpr int kSchemaVersion = 1;

base::OrderedJson flops_json(const ModelConfig& config, std::int64_t seq) {
  base::OrderedJson json;
  for (FlopsConvention convention : kFlopsConventions) {
    json[std::string(flops_convention_name(convention))] =
        model_flops_per_token(config, seq, convention);
  }
  return json;
}

void refuse_auto(const Scale& scale) {
  if (scale.kind == Scale::Kind::kAuto) {
    throw base::user_error(
        "scale auto depends on a machine and a run: list with full or a fraction such as 1/8, or "
        "use "
        "ljperf benchmark --dry-run");
  }
}

ProxyBudget unlimited(std::int64_t seq) {
  ProxyBudget budget;
  budget.shape.seq = seq;
  return budget;
}

base::OrderedJson document_of(std::int64_t seq, base::OrderedJson models) {
  return {{"schema_version", kSchemaVersion}, {"seq", seq}, {"models", std::move(models)}};
}

}  // namespace

base::OrderedJson describe_model(std::string_view id, std::string_view title, const Proxy& proxy,
                                 std::int64_t wanted_seq) {
  const ModelConfig& config = proxy.config;
  std::int64_t seq = longest_sequence(config, wanted_seq);
  ParameterCounts counts = count_parameters(config);
  ForwardFlops forward = forward_matmul_flops(config, seq, AttentionCount::kWhole);
  std::vector<std::string_view> names(engines().begin(), engines().end());
  return {{"id", id},
          {"title", title},
          {"engines", names},
          {"architecture", config.architecture},
          {"model_type", config.model_type},
          {"task", task_name(config.task)},
          {"parameters", counts.total},
          {"active_parameters", counts.active},
          {"embedding_parameters", counts.embedding},
          {"trainable_parameters", counts.trainable},
          {"layers", config.layer_count()},
          {"hidden_size", config.hidden_size},
          {"ffn_size", config.ffn_size},
          {"heads", config.heads},
          {"kv_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},
          {"experts", config.moe.experts},
          {"experts_per_token", config.moe.top_k},
          {"seq", seq},
          {"flops_per_token", flops_json(config, seq)},
          // What a profiler counts when the attention scores are computed whole, masked or not.
          {"whole_attention_flops_per_token",
           {{"forward", forward.total()},
            {"forward_layers", forward.layers},
            {"step", 3 * forward.total()}}},
          {"proxy", proxy_json(proxy)},
          {"config", config.json}};
}

base::OrderedJson list_models(const Scale& scale, std::int64_t seq) {
  refuse_auto(scale);
  base::OrderedJson models = base::OrderedJson::array();
  for (const CatalogueModel& model : catalogue_models()) {
    base::Json entry = catalogue_entry(model);
    ModelConfig config = read_catalogue_model(model);
    Scale allowed = scale;
    for (std::int64_t divisor : legal_divisors(config)) {
      allowed.divisor = divisor <= scale.divisor ? divisor : allowed.divisor;
    }
    Proxy proxy = make_proxy(config, model.id, allowed, unlimited(seq));
    models.push_back(describe_model(model.id, entry.at("title").get<std::string>(), proxy, seq));
  }
  return document_of(seq, std::move(models));
}

base::OrderedJson list_config(const base::JsonDocument& document, const Scale& scale,
                              std::int64_t seq) {
  refuse_auto(scale);
  Proxy proxy = make_proxy(read_model_config(document), document.name(), scale, unlimited(seq));
  base::OrderedJson models = base::OrderedJson::array();
  models.push_back(describe_model(document.name(), document.name(), proxy, seq));
  return document_of(seq, std::move(models));
}

}  // namespace ljtrain::ljperf
