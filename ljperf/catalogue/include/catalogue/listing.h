// The JSON of `ljperf models --json`.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "catalogue/proxy.h"

namespace ljtrain::ljperf {

// One model as it is trained (a proxy where `proxy` is one): architecture, sizes, parameters,
// FLOPs per token under each convention at `seq` tokens a sequence, the proxy, and the config.json
// that transformers is given. `id` and `title` are for people. A model with fewer positions than
// `seq` (BERT) is described at all it has: its own key `seq` says so.
base::OrderedJson describe_model(std::string_view id, std::string_view title, const Proxy& proxy,
                                 std::int64_t seq);

// {schema_version, seq, models: [...]}: every model of the catalogue at that scale; one whose heads
// do not divide that far is listed at the smallest scale it allows above it (`proxy.scale` says
// which). Throws UserError for `auto`: what that chooses depends on a machine and a run.
base::OrderedJson list_models(const Scale& scale, std::int64_t seq);

// The same for one config.json: `models` has one entry, whose id is the file's name. A scale that
// it does not allow is a UserError.
base::OrderedJson list_config(const base::JsonDocument& document, const Scale& scale,
                              std::int64_t seq);

}  // namespace ljtrain::ljperf
