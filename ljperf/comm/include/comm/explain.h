// `ljperf comm --explain`: which algorithm ACCL would choose, and why. Measures nothing.
#pragma once

#include <string>

#include "base/json.h"
#include "comm/options.h"
#include "launcher/hardware.h"

namespace ljtrain::ljperf {

struct Explanation {
  // The topology ACCL found, then a paragraph for each operation and type.
  std::string text;
  // {schema_version, topologies: [{ranks, lines}], rows: [{op, dtype, ranks, bytes, algorithms:
  // [{name, predicted_us}]}]}, cheapest first.
  base::OrderedJson json;
};
// Throws RunError when no communicator can be made.
Explanation explain_comm(const CommPlan& plan, const Hardware& hardware);

}  // namespace ljtrain::ljperf
