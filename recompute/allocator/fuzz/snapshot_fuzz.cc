// libFuzzer target: any bytes read as a memory snapshot, and everything computed from what is
// accepted. Only UserError may escape. Build with clang and -DLJTRAIN_FUZZ=ON
// -DLJTRAIN_SANITIZE=address,undefined; run as snapshot_fuzz CORPUS, with a snapshot of
// examples/memory_snapshot.py in it.
#include <cstdint>
#include <string>

#include "allocator/report.h"
#include "base/errors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ljtrain;  // NOLINT(google-build-using-namespace)
  try {
    recompute::MemoryReport report =
        recompute::analyse(recompute::parse_memory_snapshot(
                               std::string(reinterpret_cast<const char*>(data), size), "fuzzed"),
                           "fuzzed", {});
    recompute::report_text(report, 5);
    recompute::report_json(report, 5).dump();
  } catch (const base::UserError&) {
  }
  return 0;
}
