// `catalogue_listing models --json [--seq N] [--scale S] [--config FILE]`: what `ljperf models`
// prints, from the library alone.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "base/errors.h"
#include "catalogue/listing.h"

namespace {

using namespace ljtrain;  // NOLINT(google-build-using-namespace)

std::string listing(std::map<std::string, std::string> options) {
  std::int64_t seq = options.contains("--seq") ? std::stoll(options["--seq"]) : 512;
  ljperf::Scale scale =
      ljperf::parse_scale(options.contains("--scale") ? options["--scale"] : "full");
  if (!options.contains("--config")) {
    return ljperf::list_models(scale, seq).dump();
  }
  return ljperf::list_config(base::JsonDocument::read(options["--config"]), scale, seq).dump();
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 1; i + 1 < argc; ++i) {
    options[argv[i]] = argv[i + 1];
  }
  try {
    std::puts(listing(options).c_str());
    return 0;
  } catch (const base::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return base::kBadInput;
  }
}
