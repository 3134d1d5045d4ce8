// Expandable segments: one range of addresses a stream and pool, a ninth more than the device has,
// of which whole pages are mapped from the lowest free address on, and unmapped under pressure.
#include <algorithm>

#include "simulator_state.h"

namespace ljtrain::recompute {

using State = AllocatorSimulator::State;

namespace {

bool usable(const Block* block) { return block != nullptr && block->available(); }

// True when free and unmapped blocks from here on hold `bytes` without a gap.
bool has_room(const Block* block, std::int64_t bytes) {
  std::int64_t found = 0;
  for (; found < bytes && usable(block); block = block->next) {
    found += block->bytes;
  }
  return found >= bytes;
}

}  // namespace

// The lowest place with room: an unmapped block, or the free one just before it.
Block* State::find_expandable(const AllocationRequest& request) {
  FreeBlockPool& pool = *request.pool;
  Block key;
  key.stream = request.stream;
  for (auto it = pool.unmapped.lower_bound(&key);
       it != pool.unmapped.end() && (*it)->stream == request.stream; ++it) {
    Block* candidate = usable((*it)->previous) ? (*it)->previous : *it;
    if (has_room(candidate, request.bytes)) {
      return candidate;
    }
  }
  auto range = std::make_unique<ExpandableRange>();
  range->page = pool.small ? kSmallSegment : settings.large_segment;
  std::int64_t space =
      device.total > kAddressSpace / 2 ? kAddressSpace : device.total + device.total / 8;
  range->bytes = (space + range->page - 1) / range->page * range->page;
  range->address = new_address(range->bytes);
  Block unmapped;
  unmapped.pool = request.pool;
  unmapped.stream = request.stream;
  unmapped.address = range->address;
  unmapped.bytes = range->bytes;
  unmapped.mapped = false;
  unmapped.range = range.get();
  Block* block = new_block(unmapped);
  pool.unmapped.insert(block);
  ranges.push_back(std::move(range));
  return block;
}

Block* State::allocate_expandable(const AllocationRequest& request) {
  Block* candidate = find_expandable(request);
  if (!candidate->mapped && !map(candidate, std::min(candidate->bytes, request.bytes))) {
    return nullptr;
  }
  while (candidate->bytes < request.bytes) {
    Block* rest = candidate->next;
    if (!map(rest, std::min(request.bytes - candidate->bytes, rest->bytes))) {
      return nullptr;
    }
    candidate = rest;  // merged with what came before it
  }
  request.pool->blocks.erase(candidate);
  return candidate;
}

// Maps whole pages at the start of an unmapped block. False when the device has too few.
bool State::map(Block* block, std::int64_t bytes) {
  std::int64_t page = block->range->page;
  std::int64_t mapped = (bytes + page - 1) / page * page;
  if (mapped > device.total - stats.reserved) {
    return false;
  }
  FreeBlockPool& pool = *block->pool;
  pool.unmapped.erase(block);
  block->mapped = true;
  if (mapped < block->bytes) {
    Block* rest = new_block(*block);
    rest->mapped = false;
    rest->address += mapped;
    rest->bytes -= mapped;
    rest->previous = block;
    if (rest->next != nullptr) {
      rest->next->previous = rest;
    }
    block->next = rest;
    block->bytes = mapped;
    pool.unmapped.insert(rest);
  }
  merge(block, block->previous);
  merge(block, block->next);
  pool.insert(block);
  reserve(mapped);
  ++stats.device_allocations;
  return true;
}

// Gives the whole pages inside a free block back; what is left on either side stays free.
void State::unmap(Block* block) {
  std::int64_t page = block->range->page;
  std::int64_t base = block->range->address;
  std::int64_t end = block->address + block->bytes;
  std::int64_t first = base + (block->address - base + page - 1) / page * page;
  std::int64_t last = base + (end - base) / page * page;
  if (first >= last) {
    return;
  }
  FreeBlockPool& pool = *block->pool;
  pool.blocks.erase(block);
  if (first > block->address) {
    Block* before = new_block(*block);
    before->bytes = first - block->address;
    before->next = block;
    if (before->previous != nullptr) {
      before->previous->next = before;
    }
    block->previous = before;
    pool.insert(before);
  }
  if (last < end) {
    Block* after = new_block(*block);
    after->address = last;
    after->bytes = end - last;
    after->previous = block;
    if (after->next != nullptr) {
      after->next->previous = after;
    }
    block->next = after;
    pool.insert(after);
  }
  block->address = first;
  block->bytes = last - first;
  block->mapped = false;
  stats.reserved -= block->bytes;
  ++stats.device_frees;
  merge(block, block->previous);
  merge(block, block->next);
  pool.unmapped.insert(block);
}

// The range is all unmapped: its addresses are given back, too.
void State::release_range(Block* block) {
  if (block->mapped) {
    return;
  }
  block->pool->unmapped.erase(block);
  std::erase_if(ranges, [&](const auto& range) { return range.get() == block->range; });
  recycle(block);
}

}  // namespace ljtrain::recompute
