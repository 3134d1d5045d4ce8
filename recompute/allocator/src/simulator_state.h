// What the simulator is made of. A segment is a chain of blocks by address; free blocks are in
// their pool's set, ordered so that the best fit of a stream is a lower bound.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "allocator/simulator.h"

namespace ljtrain::recompute {

inline constexpr std::int64_t kSmallestBlock = 512;
inline constexpr std::int64_t kSmallRequest = kMebibyte;  // the largest that goes to the small pool
inline constexpr std::int64_t kSmallSegment = 2 * kMebibyte;
inline constexpr std::int64_t kOwnSegment = 10 * kMebibyte;  // requests from here get their own
inline constexpr std::int64_t kSegmentStep = 2 * kMebibyte;  // in multiples of this
// Addresses of an expandable segment on a device without limit: more than a program can hold.
inline constexpr std::int64_t kAddressSpace = std::int64_t{1} << 52;

struct FreeBlockPool;

// Address space of which pages are mapped as they are needed.
struct ExpandableRange {
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t page = 0;
};

struct AllocatorSimulator::Block {
  FreeBlockPool* pool = nullptr;
  std::int64_t stream = 0;
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t requested = 0;
  bool allocated = false;
  bool mapped = true;
  Block* previous = nullptr;  // neighbours in the segment
  Block* next = nullptr;
  ExpandableRange* range = nullptr;   // of an expandable segment
  std::vector<std::int64_t> streams;  // recorded, beside its own
  int pending = 0;                    // uses on other streams that are not known to be over
  std::int64_t age_base = 0;          // the pool's searches when the block became free

  bool split() const { return previous != nullptr || next != nullptr; }
  bool available() const { return !allocated && pending == 0 && streams.empty(); }
};

using Block = AllocatorSimulator::Block;

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) {
      return a->stream < b->stream;
    }
    if (a->bytes != b->bytes) {
      return a->bytes < b->bytes;
    }
    return a->address != b->address ? a->address < b->address : std::less<>()(a, b);
  }
};

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    return a->stream != b->stream ? a->stream < b->stream : a->address < b->address;
  }
};

struct FreeBlockPool {
  bool small = false;
  std::set<Block*, BySize> blocks;
  std::set<Block*, ByAddress> unmapped;
  std::int64_t searches = 0;

  void insert(Block* block) {
    block->age_base = searches;
    blocks.insert(block);
  }
  std::int64_t age(const Block* block) const { return searches - block->age_base; }
};

struct PoolPair {
  FreeBlockPool small;
  FreeBlockPool large;
};

struct AllocationRequest {
  std::int64_t requested = 0;
  std::int64_t bytes = 0;    // rounded
  std::int64_t segment = 0;  // what would be taken from the device
  std::int64_t stream = 0;
  FreeBlockPool* pool = nullptr;
  Block* block = nullptr;
};

struct AllocatorSimulator::State {
  AllocatorSettings settings;
  DeviceMemory device;
  std::int64_t allowed = kUnlimited;  // the process's share of the device
  AllocatorStats stats;
  std::optional<OutOfMemory> last_failure;
  std::map<PoolId, PoolPair> pools;
  PoolPair* shared = nullptr;
  std::vector<std::unique_ptr<ExpandableRange>> ranges;
  // Freed blocks that wait, by the stream they wait for; false: the stream is not there yet.
  std::map<std::int64_t, std::deque<std::pair<Block*, bool>>> events;
  std::set<Block*> waiting;  // freed by free_later(), not completed
  std::deque<Block> storage;
  std::vector<Block*> unused;
  std::int64_t next_address = kSegmentStep;

  // simulator.cc
  Block* allocate(AllocationRequest request);
  Block* hand_out(const AllocationRequest& request);
  bool should_split(const AllocationRequest& request) const;
  void free(Block* block);
  void free_block(Block* block);
  std::int64_t merge(Block* block, Block* neighbour);
  void process_events(bool wait);
  void end_use(Block* block);
  Block* new_block(const Block& content);
  void recycle(Block* block);
  std::int64_t new_address(std::int64_t bytes);
  void reserve(std::int64_t bytes);

  // cache.cc: the ladder from a cached block to the device and back
  bool find_cached(AllocationRequest& request);
  bool take_from_device(AllocationRequest& request, bool is_retry);
  void collect_garbage();
  bool release_oversize(const AllocationRequest& request);
  void release_cached();
  void release_pool(FreeBlockPool& pool);
  void release_segment(Block* block);
  void fail(const AllocationRequest& request);

  // expandable.cc
  Block* allocate_expandable(const AllocationRequest& request);
  Block* find_expandable(const AllocationRequest& request);
  bool map(Block* block, std::int64_t bytes);
  void unmap(Block* block);
  void release_range(Block* block);
};

}  // namespace ljtrain::recompute
