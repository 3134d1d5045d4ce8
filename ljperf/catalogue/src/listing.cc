#include "catalogue/listing.h"

#include <string>
#include <vector>

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

}  // namespace

base::OrderedJson describe_model(std::string_view id, std::string_view title, const Proxy& proxy,
                                 std::int64_t seq) {
  const ModelConfig& config = proxy.config;
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
  base::OrderedJson models = base::OrderedJson::array();
  ProxyBudget budget;
  budget.shape.seq = seq;
  for (const CatalogueModel& model : catalogue_models()) {
    base::Json entry = catalogue_entry(model);
    Proxy proxy = make_proxy(read_catalogue_model(model), model.id, scale, budget);
    models.push_back(describe_model(model.id, entry.at("title").get<std::string>(), proxy, seq));
  }
  return {{"schema_version", kSchemaVersion}, {"seq", seq}, {"models", models}};
}

}  // namespace ljtrain::ljperf
