#include "allocator/simulator.h"

#include <algorithm>

#include "simulator_state.h"

namespace ljtrain::recompute {
namespace {

using State = AllocatorSimulator::State;

std::int64_t segment_for(std::int64_t bytes, const AllocatorSettings& settings) {
  if (bytes <= kSmallRequest) {
    return kSmallSegment;
  }
  if (bytes < kOwnSegment) {
    return settings.large_segment;
  }
  return (bytes + kSegmentStep - 1) / kSegmentStep * kSegmentStep;
}

// Links `block` between two neighbours.
void splice(Block* block, Block* before, Block* after) {
  block->previous = before;
  block->next = after;
  if (before != nullptr) {
    before->next = block;
  }
  if (after != nullptr) {
    after->previous = block;
  }
}

}  // namespace

Block* State::new_block(const Block& content) {
  Block* block = nullptr;
  if (unused.empty()) {
    block = &storage.emplace_back();
  } else {
    block = unused.back();
    unused.pop_back();
  }
  *block = content;
  return block;
}

void State::recycle(Block* block) {
  block->pool = nullptr;
  unused.push_back(block);
}

std::int64_t State::new_address(std::int64_t bytes) {
  std::int64_t address = next_address;
  // Wraps around long after what a device can have; only the order among equals hangs on it.
  constexpr std::int64_t kMask = (std::int64_t{1} << 61) - 1;
  next_address = (next_address + ((bytes - 1) / kSegmentStep + 1) * kSegmentStep) & kMask;
  return address;
}

void State::reserve(std::int64_t bytes) {
  stats.reserved += bytes;
  stats.peak_reserved = std::max(stats.peak_reserved, stats.reserved);
}

Block* State::allocate(AllocationRequest request) {
  process_events(false);
  bool found = find_cached(request);
  if (!found) {
    collect_garbage();
    // A share below 1 is checked before, and goes on down the ladder.
    if (settings.throw_on_cudamalloc_oom && allowed == kUnlimited &&
        request.segment > device.total - stats.reserved) {
      fail(request);
      return nullptr;
    }
    found = take_from_device(request, false);
    if (!found && release_oversize(request)) {
      found = take_from_device(request, false);
    }
    if (!found) {
      release_cached();
      found = take_from_device(request, true);
    }
  }
  if (!found) {
    fail(request);
    return nullptr;
  }
  return hand_out(request);
}

bool State::should_split(const AllocationRequest& request) const {
  std::int64_t rest = request.block->bytes - request.bytes;
  if (request.pool->small || settings.expandable_segments) {
    return rest >= kSmallestBlock;
  }
  return request.bytes < settings.max_split && rest > kSmallRequest;
}

Block* State::hand_out(const AllocationRequest& request) {
  Block* block = request.block;
  if (should_split(request)) {
    Block* rest = block;
    block = new_block(*rest);
    block->bytes = request.bytes;
    splice(block, rest->previous, rest);
    rest->address += request.bytes;
    rest->bytes -= request.bytes;
    request.pool->insert(rest);
  }
  block->allocated = true;
  block->requested = request.requested;
  stats.requested += request.requested;
  stats.allocated += block->bytes;
  stats.active += block->bytes;
  stats.peak_requested = std::max(stats.peak_requested, stats.requested);
  stats.peak_allocated = std::max(stats.peak_allocated, stats.allocated);
  stats.peak_active = std::max(stats.peak_active, stats.active);
  return block;
}

void State::free(Block* block) {
  block->allocated = false;
  stats.allocated -= block->bytes;
  stats.requested -= block->requested;
  if (block->streams.empty()) {
    free_block(block);
    return;
  }
  for (std::int64_t stream : std::exchange(block->streams, {})) {
    ++block->pending;
    events[stream].emplace_back(block, false);
  }
}

// Returns the block to its pool, merged with free neighbours.
void State::free_block(Block* block) {
  stats.active -= block->bytes;
  block->requested = 0;
  merge(block, block->previous);
  merge(block, block->next);
  block->pool->insert(block);
}

// Makes a free neighbour part of `block`; returns its size, 0 when it cannot be.
std::int64_t State::merge(Block* block, Block* neighbour) {
  if (neighbour == nullptr || !neighbour->available() || neighbour->mapped != block->mapped) {
    return 0;
  }
  // The set finds the neighbour by its size and address, so it leaves before anything changes.
  if (neighbour->mapped) {
    block->pool->blocks.erase(neighbour);
  } else {
    block->pool->unmapped.erase(neighbour);
  }
  if (block->previous == neighbour) {
    block->address = neighbour->address;
    splice(block, neighbour->previous, block->next);
  } else {
    splice(block, block->previous, neighbour->next);
  }
  std::int64_t bytes = neighbour->bytes;
  block->bytes += bytes;
  recycle(neighbour);
  return bytes;
}

void State::end_use(Block* block) {
  if (--block->pending == 0) {
    free_block(block);
  }
}

// Frees what no stream uses any more. Events of a stream end in order; `wait` ends all of them.
void State::process_events(bool wait) {
  if (events.empty() && (!wait || waiting.empty())) {
    return;
  }
  for (auto stream = events.begin(); stream != events.end();) {
    auto& queue = stream->second;
    while (!queue.empty() && (wait || queue.front().second)) {
      Block* block = queue.front().first;
      queue.pop_front();
      end_use(block);
    }
    stream = queue.empty() ? events.erase(stream) : std::next(stream);
  }
  if (wait) {
    for (Block* block : std::exchange(waiting, {})) {
      end_use(block);
    }
  }
}

AllocatorSimulator::AllocatorSimulator(AllocatorSettings settings, DeviceMemory device)
    : state_(std::make_unique<State>()) {
  state_->settings = std::move(settings);
  state_->device = device;
  // Without a share below 1 only the device itself sets a limit, and it counts pages, not requests.
  if (device.total != kUnlimited && state_->settings.per_process_memory_fraction < 1) {
    state_->allowed = static_cast<std::int64_t>(state_->settings.per_process_memory_fraction *
                                                static_cast<double>(device.total));
  }
  state_->shared = &state_->pools[PoolId{0, 0}];
  state_->shared->small.small = true;
}

AllocatorSimulator::~AllocatorSimulator() = default;

AllocatorSimulator::Block* AllocatorSimulator::allocate(std::int64_t bytes, std::int64_t stream,
                                                        PoolId pool) {
  PoolPair* pair = state_->shared;
  if (pool != PoolId{0, 0}) {
    pair = &state_->pools[pool];
    pair->small.small = true;
  }
  AllocationRequest request;
  request.requested = bytes;
  request.bytes = state_->settings.rounded(bytes);
  request.segment = segment_for(request.bytes, state_->settings);
  request.stream = stream;
  request.pool = request.bytes <= kSmallRequest ? &pair->small : &pair->large;
  return state_->allocate(request);
}

void AllocatorSimulator::free(Block* block) { state_->free(block); }

void AllocatorSimulator::record_stream(Block* block, std::int64_t stream) {
  auto& streams = block->streams;
  if (stream != block->stream && std::ranges::find(streams, stream) == streams.end()) {
    streams.push_back(stream);
  }
}

void AllocatorSimulator::synchronize(std::int64_t stream) {
  auto found = state_->events.find(stream);
  if (found != state_->events.end()) {
    for (auto& [block, done] : found->second) {
      done = true;
    }
  }
}

void AllocatorSimulator::free_later(Block* block) {
  ++block->pending;
  state_->waiting.insert(block);
  block->streams.clear();
  block->allocated = false;
  state_->stats.allocated -= block->bytes;
  state_->stats.requested -= block->requested;
}

void AllocatorSimulator::complete(Block* block) {
  if (state_->waiting.erase(block) > 0) {
    state_->end_use(block);
  }
}

void AllocatorSimulator::empty_cache() { state_->release_cached(); }

const AllocatorStats& AllocatorSimulator::stats() const { return state_->stats; }

const std::optional<OutOfMemory>& AllocatorSimulator::last_failure() const {
  return state_->last_failure;
}

std::int64_t AllocatorSimulator::address(const Block* block) { return block->address; }

std::int64_t AllocatorSimulator::size(const Block* block) { return block->bytes; }

std::vector<AllocatorSimulator::SegmentView> AllocatorSimulator::segments() const {
  std::vector<SegmentView> segments;
  for (const Block& head : state_->storage) {
    if (head.pool == nullptr || !head.mapped ||
        (head.previous != nullptr && head.previous->mapped)) {
      continue;
    }
    SegmentView& segment = segments.emplace_back();
    segment.address = head.address;
    segment.stream = head.stream;
    segment.large = !head.pool->small;
    segment.expandable = head.range != nullptr;
    for (const Block* block = &head; block != nullptr && block->mapped; block = block->next) {
      segment.blocks.push_back({.bytes = block->bytes,
                                .requested = block->requested,
                                .allocated = block->allocated,
                                .active = !block->available()});
    }
  }
  std::ranges::sort(segments, {}, &SegmentView::address);
  return segments;
}

}  // namespace ljtrain::recompute
