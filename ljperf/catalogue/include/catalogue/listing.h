// The JSON of `ljperf models --json`.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "catalogue/proxy.h"

namespace ljtrain::ljperf {

// One model as it is trained (a proxy where `proxy` is one): architecture, sizes, parameters,
// FLOPs per token under each convention at `seq` tokens a sequence, the proxy, and the config.json
// that transformers is given. `id` and `title` are for people.
base::OrderedJson describe_model(std::string_view id, std::string_view title, const Proxy& proxy,
                                 std::int64_t seq);

// {schema_version, seq, models: [...]}: every model of the catalogue at that scale. Only `full` and
// fractions make sense for a list: what `auto` chooses depends on a machine.
base::OrderedJson list_models(const Scale& scale, std::int64_t seq);

}  // namespace ljtrain::ljperf
