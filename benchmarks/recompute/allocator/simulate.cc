// Plays a script of allocator calls, one a line, on the simulator, and prints its state after each
// in the form of native.cc, which plays the same script on PyTorch's own allocator.
//   simulate TOTAL_BYTES [SETTINGS] < script
//   a ID BYTES STREAM   allocate        f ID          free      r ID STREAM   record_stream
//   s STREAM            the stream is idle              e             empty_cache
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <unordered_map>

#include "allocator/simulator.h"

int main(int argc, char** argv) {
  using ljtrain::recompute::AllocatorSimulator;
  try {
    AllocatorSimulator simulator(
        ljtrain::recompute::parse_allocator_settings(argc > 2 ? argv[2] : ""),
        {.total = std::stoll(argv[1])});
    std::unordered_map<std::int64_t, AllocatorSimulator::Block*> live;
    char operation = 0;
    std::int64_t id = 0;
    while (std::cin >> operation) {
      bool failed = false;
      std::int64_t address = -1;
      std::int64_t bytes = 0;
      std::int64_t stream = 0;
      if (operation == 'a') {
        std::cin >> id >> bytes >> stream;
        AllocatorSimulator::Block* block = simulator.allocate(bytes, stream);
        failed = block == nullptr;
        if (!failed) {
          live[id] = block;
          address = AllocatorSimulator::address(block);
        }
      } else if (operation == 'f') {
        std::cin >> id;
        if (auto found = live.find(id); found != live.end()) {
          simulator.free(found->second);
          live.erase(found);
        }
      } else if (operation == 'r') {
        std::cin >> id >> stream;
        if (auto found = live.find(id); found != live.end()) {
          simulator.record_stream(found->second, stream);
        }
      } else if (operation == 's') {
        std::cin >> stream;
        simulator.synchronize(stream);
      } else if (operation == 'e') {
        simulator.empty_cache();
      }
      const auto& now = simulator.stats();
      std::printf("%c %d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                  " %" PRId64 " %" PRId64 " %" PRId64 "\n",
                  operation, failed ? 1 : 0, address, now.allocated, now.active, now.reserved,
                  now.segments, now.device_allocations, now.device_frees, now.out_of_memory,
                  now.cache_flushes);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulate: %s\n", error.what());
    return 1;
  }
  return 0;
}
