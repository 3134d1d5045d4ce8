// The ladder: a cached block; garbage collection; the device; the device after oversize blocks went
// back; the device after everything that can be given back was.
#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "simulator_state.h"

namespace ljtrain::recompute {

using State = AllocatorSimulator::State;

namespace {

// What a block of an expandable segment can grow to.
std::int64_t room(const Block* block) {
  bool grows = block->next != nullptr && !block->next->mapped;
  return block->bytes + (grows ? block->next->bytes : 0);
}

}  // namespace

// The smallest free block of the stream that holds the request.
bool State::find_cached(AllocationRequest& request) {
  FreeBlockPool& pool = *request.pool;
  ++pool.searches;
  Block key;
  key.stream = request.stream;
  key.bytes = request.bytes;
  auto best = pool.blocks.lower_bound(&key);
  if (best == pool.blocks.end() || (*best)->stream != request.stream) {
    return false;
  }
  // At the growing end of a segment, the size that counts is the one it can grow to.
  if ((*best)->range != nullptr) {
    for (auto next = std::next(best);
         next != pool.blocks.end() && (*next)->stream == request.stream &&
         room(*next) < room(*best);
         ++next) {
      best = next;
    }
  }
  std::int64_t bytes = (*best)->bytes;
  if (request.bytes < settings.max_split && bytes >= settings.max_split) {
    return false;  // an oversize block serves oversize requests only
  }
  if (request.bytes >= settings.max_split &&
      bytes - request.bytes >= settings.max_non_split_rounding) {
    return false;
  }
  request.block = *best;
  pool.blocks.erase(best);
  return true;
}

bool State::take_from_device(AllocationRequest& request, bool is_retry) {
  if (is_retry) {
    ++stats.cache_flushes;
  }
  if (request.segment > allowed - stats.reserved) {
    return false;
  }
  if (settings.expandable_segments) {
    request.block = allocate_expandable(request);
    return request.block != nullptr;
  }
  if (request.segment > device.total - stats.reserved) {
    return false;
  }
  Block segment;
  segment.pool = request.pool;
  segment.stream = request.stream;
  segment.address = new_address(request.segment);
  segment.bytes = request.segment;
  request.block = new_block(segment);
  reserve(request.segment);
  ++stats.segments;
  ++stats.device_allocations;
  return true;
}

// Gives whole segments of the large pool back, the longest unused first, until the reserved memory
// is below the threshold.
void State::collect_garbage() {
  if (!settings.collects_garbage() || allowed == kUnlimited) {
    return;
  }
  auto threshold = static_cast<std::int64_t>(settings.garbage_collection_threshold *
                                             static_cast<double>(allowed));
  if (stats.reserved <= threshold) {
    return;
  }
  std::int64_t target = stats.reserved - threshold;
  FreeBlockPool& pool = shared->large;
  std::int64_t total_age = 0;
  std::int64_t count = 0;
  for (const Block* block : pool.blocks) {
    if (!block->split()) {
      total_age += pool.age(block);
      ++count;
    }
  }
  std::int64_t reclaimed = 0;
  bool freed = true;
  while (reclaimed < target && freed && count > 0) {
    double average = static_cast<double>(total_age) / static_cast<double>(count);
    freed = false;
    for (auto it = pool.blocks.begin(); it != pool.blocks.end();) {
      Block* block = *it++;
      if (block->split() || static_cast<double>(pool.age(block)) < average) {
        continue;
      }
      freed = true;
      reclaimed += block->bytes;
      total_age -= pool.age(block);
      --count;
      release_segment(block);
    }
  }
}

// With max_split_size: gives oversize blocks of the stream back, enough for the request. False when
// they do not suffice.
bool State::release_oversize(const AllocationRequest& request) {
  if (settings.max_split == kUnlimited) {
    return false;
  }
  FreeBlockPool& pool = *request.pool;
  Block key;
  key.stream = request.stream;
  key.bytes = std::max(request.bytes, settings.max_split);
  auto it = pool.blocks.lower_bound(&key);
  if (it != pool.blocks.end() && (*it)->stream == request.stream && (*it)->range == nullptr) {
    release_segment(*it);
    return true;
  }
  std::int64_t released = 0;
  while (released < key.bytes && it != pool.blocks.begin()) {
    Block* block = *std::prev(it);
    if (block->stream != request.stream || block->bytes < settings.max_split) {
      break;
    }
    if (block->range != nullptr) {
      --it;
      continue;
    }
    released += block->bytes;
    release_segment(block);
  }
  return released >= key.bytes;
}

void State::release_cached() {
  process_events(true);
  release_pool(shared->large);
  release_pool(shared->small);
}

void State::release_pool(FreeBlockPool& pool) {
  std::vector<Block*> to_unmap;
  for (auto it = pool.blocks.begin(); it != pool.blocks.end();) {
    Block* block = *it++;
    if (block->range != nullptr) {
      to_unmap.push_back(block);
    } else if (!block->split()) {
      release_segment(block);
    }
  }
  for (Block* block : to_unmap) {
    unmap(block);
    if (!block->split()) {
      release_range(block);
    }
  }
}

void State::release_segment(Block* block) {
  block->pool->blocks.erase(block);
  stats.reserved -= block->bytes;
  --stats.segments;
  ++stats.device_frees;
  recycle(block);
}

void State::fail(const AllocationRequest& request) {
  ++stats.out_of_memory;
  OutOfMemory failure;
  failure.requested = request.requested;
  failure.needed = request.segment;
  failure.limit = std::min(allowed, device.total);
  failure.reserved = stats.reserved;
  failure.allocated = stats.allocated;
  failure.cached = stats.reserved - stats.active;
  for (const Block* block : request.pool->blocks) {
    if (block->stream == request.stream) {
      failure.largest_free = std::max(failure.largest_free, block->bytes);
    }
  }
  last_failure = failure;
}

std::string OutOfMemory::reason() const {
  auto size = [](std::int64_t bytes) { return base::format_bytes(static_cast<double>(bytes)); };
  std::string start = fmt::format(
      "{} were asked for, which takes {} from the device; {} of {} are "
      "reserved already",
      size(requested), size(needed), size(reserved), size(limit));
  if (fragmented()) {
    return fmt::format("{}, and of those {} are free but in pieces of {} or less", start,
                       size(cached), size(largest_free));
  }
  return fmt::format("{}, and {} of those are in use", start, size(reserved - cached));
}

}  // namespace ljtrain::recompute
