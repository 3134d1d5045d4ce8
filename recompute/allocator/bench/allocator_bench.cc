// Events a second of the simulator on a made-up training run: a few hundred live blocks, sizes that
// vary from step to step. Counts the processor's time, since other programs may share the core.
//   allocator_bench [EVENTS] [SETTINGS]
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <random>
#include <vector>

#include "allocator/trace.h"

namespace {

using ljtrain::recompute::kMebibyte;
using ljtrain::recompute::Trace;

// Forward passes that keep a block a layer and use some that live briefly; backward passes that
// free them in reverse.
Trace training_trace(std::int64_t events) {
  constexpr int kLayers = 80;
  std::mt19937_64 random(1);  // NOLINT(bugprone-random-generator-seed): the same on every run
  Trace trace;
  for (int i = 0; i < 4 * kLayers; ++i) {
    trace.allocate(16 * kMebibyte, 0);
  }
  while (static_cast<std::int64_t>(trace.events.size()) < events) {
    auto tokens = static_cast<std::int64_t>(1024 + random() % 1024);
    std::vector<std::int64_t> saved;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (std::int64_t width : {4096, 1024, 14336, 32}) {
        saved.push_back(trace.allocate(2 * tokens * width));
        trace.free(trace.allocate(4 * tokens * width));
      }
    }
    for (; !saved.empty(); saved.pop_back()) {
      std::int64_t gradient = trace.allocate(2 * tokens * 4096);
      trace.free(saved.back());
      trace.free(gradient);
    }
  }
  return trace;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Trace trace = training_trace(argc > 1 ? std::atoll(argv[1]) : 2'000'000);
    auto settings = ljtrain::recompute::parse_allocator_settings(argc > 2 ? argv[2] : "");
    std::clock_t start = std::clock();
    auto result = ljtrain::recompute::replay(trace, settings, {});
    double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    fmt::print("{} events in {:.3f} s of processor time: {:.2f} M events/s, {} bytes reserved\n",
               trace.events.size(), seconds,
               static_cast<double>(trace.events.size()) / seconds / 1e6,
               result.stats.peak_reserved);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "allocator_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
