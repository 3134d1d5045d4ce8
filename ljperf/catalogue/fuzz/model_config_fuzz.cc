// libFuzzer target: any bytes read as a config.json, and everything computed from what is accepted.
// Only UserError may escape the reader. Build with clang and -DLJTRAIN_FUZZ=ON
// -DLJTRAIN_SANITIZE=address,undefined; run as model_config_fuzz CORPUS ljperf/catalogue/models.
#include <cstdint>
#include <string>

#include "base/errors.h"
#include "catalogue/flops.h"
#include "catalogue/listing.h"
#include "catalogue/proxy.h"

namespace {

using namespace ljtrain;  // NOLINT(google-build-using-namespace)

void compute_everything(const ljperf::ModelConfig& config) {
  ljperf::ProxyBudget budget;
  budget.shape.seq = 512;
  for (const char* scale : {"full", "1/2"}) {
    ljperf::Proxy proxy = ljperf::make_proxy(config, "fuzzed", ljperf::parse_scale(scale), budget);
    ljperf::describe_model("fuzzed", "fuzzed", proxy, budget.shape.seq).dump();
  }
  budget.memory_limit_bytes = 12e9;
  budget.step_budget = ljperf::kHostStepBudget;
  ljperf::make_proxy(config, "fuzzed", ljperf::parse_scale("auto"), budget);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    compute_everything(ljperf::read_model_config(base::JsonDocument::parse(
        std::string(reinterpret_cast<const char*>(data), size), "config.json")));
  } catch (const base::UserError&) {
  }
  return 0;
}
