// PyTorch's CUDA caching allocator without a device: the same decisions on the same requests, so
// that what a program would reserve, and where it would run out, can be told from its trace.
//
// Source: the behaviour of c10/cuda/CUDACachingAllocator.cpp in PyTorch 2.13 (backend:native). Not
// modelled: memory that others take from the device, cudaMalloc's own granularity, peer access.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/settings.h"

namespace ljtrain::recompute {

// What the process may take. Bytes.
struct DeviceMemory {
  std::int64_t total = kUnlimited;  // what cudaMalloc can hand out to this process
};

// Bytes and counts now; `peak_*` since the start.
struct AllocatorStats {
  std::int64_t requested = 0;  // of live allocations, as the program asked
  std::int64_t allocated = 0;  // of live allocations, as blocks
  std::int64_t active = 0;     // allocated, and freed but still in use on another stream
  std::int64_t reserved = 0;   // taken from the device
  std::int64_t peak_requested = 0;
  std::int64_t peak_allocated = 0;
  std::int64_t peak_active = 0;
  std::int64_t peak_reserved = 0;
  std::int64_t segments = 0;  // cudaMalloc'ed and not freed (none with expandable segments)
  std::int64_t device_allocations = 0;  // calls of cudaMalloc, or ranges mapped
  std::int64_t device_frees = 0;        // calls of cudaFree, or ranges unmapped
  std::int64_t cache_flushes = 0;       // cached memory given back because an allocation failed
  std::int64_t out_of_memory = 0;       // allocations that failed

  bool operator==(const AllocatorStats&) const = default;
};

// An allocation that failed, and the state it failed in. Bytes.
struct OutOfMemory {
  std::int64_t requested = 0;
  std::int64_t needed = 0;  // what had to be taken from the device
  std::int64_t limit = 0;
  std::int64_t reserved = 0;  // after everything that could be given back was
  std::int64_t allocated = 0;
  std::int64_t cached = 0;        // reserved, not active: pieces of segments that are in use
  std::int64_t largest_free = 0;  // the largest such piece that this request could have had
  // True when the cached pieces together would have held the request: it failed for fragmentation.
  bool fragmented() const { return cached >= requested; }
  // One sentence, with the limit.
  std::string reason() const;
};

// A private pool (CUDA graphs, torch.cuda.MemPool) by PyTorch's pair of numbers; {0, 0} is shared.
using PoolId = std::pair<std::int64_t, std::int64_t>;

class AllocatorSimulator {
 public:
  struct Block;  // an allocation, until it is freed
  struct State;
  struct SegmentView {
    std::int64_t address = 0;
    std::int64_t stream = 0;
    bool large = false;
    bool expandable = false;
    struct Piece {
      std::int64_t bytes = 0;
      std::int64_t requested = 0;  // 0 when it is free
      bool allocated = false;
      bool active = false;
    };
    std::vector<Piece> blocks;  // by address, without gaps
  };

  explicit AllocatorSimulator(AllocatorSettings settings, DeviceMemory device = {});
  ~AllocatorSimulator();
  AllocatorSimulator(const AllocatorSimulator&) = delete;
  AllocatorSimulator& operator=(const AllocatorSimulator&) = delete;

  // nullptr when the device has not enough memory (see last_failure()).
  // 0 < bytes <= kLargestRequest.
  Block* allocate(std::int64_t bytes, std::int64_t stream = 0, PoolId pool = {0, 0});
  // The block is free at once, or, after record_stream, when those streams have come so far.
  void free(Block* block);
  // As Tensor.record_stream: `stream` uses the block, too.
  void record_stream(Block* block, std::int64_t stream);
  // All work so far on `stream` is done; what waited for it is free from the next allocation on.
  void synchronize(std::int64_t stream);
  // Freed, but used on streams that nobody recorded, until complete(): what a trace shows.
  void free_later(Block* block);
  // Ends what free_later() began. Does nothing when memory pressure has ended it before.
  void complete(Block* block);
  // As torch.cuda.empty_cache().
  void empty_cache();

  const AllocatorStats& stats() const;
  const std::optional<OutOfMemory>& last_failure() const;
  // Address, and size as a block, of a live allocation.
  static std::int64_t address(const Block* block);
  static std::int64_t size(const Block* block);
  // Reserved memory as segments, by address.
  std::vector<SegmentView> segments() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace ljtrain::recompute
