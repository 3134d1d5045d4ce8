#include "algorithm/stream.h"

#include <algorithm>
#include <optional>

namespace ljtrain::accl::algorithm {
namespace {

constexpr std::chrono::milliseconds kLookAround{50};

// Calls `attempt` until it returns something; between, sleeps until a stream has moved.
template <typename Attempt>
auto wait_for(const StreamContext& context, int peer, Attempt attempt) {
  if (auto result = attempt()) [[likely]] {
    return result;
  }
  for (auto looked = Clock::now();;) {
    const std::uint32_t seen = context.transport.doorbell();
    if (auto result = attempt()) {
      return result;
    }
    const auto now = Clock::now();
    if (now >= context.wait.deadline()) {
      throw context.waiting.break_communicator(context.wait.late());
    }
    if (now - looked >= kLookAround) {
      looked = now;
      if (const auto why = context.waiting.gone(peer)) {
        // What it sent before counts.
        if (auto result = attempt()) {
          return result;
        }
        throw context.waiting.break_communicator(Error(ErrorCode::kRemote, *why, {peer}));
      }
    }
    context.transport.wait(seen, context.wait.deadline());
  }
}

[[noreturn]] void complain(const StreamContext& context, int peer, std::size_t bytes,
                           std::size_t expected) {
  throw context.waiting.break_communicator(
      error(ErrorCode::kInternal, "rank {} sent a chunk of {} bytes to rank {}, which expects {}",
            peer, bytes, context.rank, expected));
}

}  // namespace

std::size_t chunk_bytes(const StreamContext& context) {
  const std::size_t most = context.transport.max_chunk_bytes() / 2;
  return context.chunk_bytes == 0 ? most : std::min(context.chunk_bytes, most);
}

std::byte* reserve(const StreamContext& context, int peer, std::size_t bytes) {
  ChunkSender& stream = context.transport.to(peer);
  return wait_for(context, peer, [&] { return stream.try_reserve(bytes); });
}

void commit(const StreamContext& context, int peer, std::size_t bytes) {
  context.transport.to(peer).commit({.bytes = static_cast<std::uint32_t>(bytes)});
}

void send(const StreamContext& context, int peer, const void* data, std::size_t bytes) {
  reduction::copy(reserve(context, peer, bytes), data, bytes, false);
  commit(context, peer, bytes);
}

const std::byte* receive(const StreamContext& context, int peer, std::size_t bytes) {
  ChunkReceiver& stream = context.transport.from(peer);
  const Chunk* chunk = wait_for(context, peer, [&] { return stream.try_peek(); });
  if (chunk->header.bytes != bytes) {
    complain(context, peer, chunk->header.bytes, bytes);
  }
  return chunk->payload;
}

void release(const StreamContext& context, int peer) { context.transport.from(peer).release(); }

void exchange(const StreamContext& context, const Exchange& what, const Take& take) {
  ChunkSender& to = context.transport.to(what.peer);
  ChunkReceiver& from = context.transport.from(what.peer);
  std::size_t sent = 0;
  std::size_t received = 0;
  const auto move = [&] {
    bool moved = false;
    if (sent < what.outgoing) {
      const std::size_t bytes = std::min(what.chunk, what.outgoing - sent);
      if (std::byte* place = to.try_reserve(bytes)) {
        reduction::copy(place, what.data + sent, bytes, false);
        to.commit({.bytes = static_cast<std::uint32_t>(bytes)});
        sent += bytes;
        moved = true;
      }
    }
    if (received < what.incoming && (!what.in_step || sent > received)) {
      const std::size_t bytes = std::min(what.chunk, what.incoming - received);
      if (const Chunk* chunk = from.try_peek()) {
        if (chunk->header.bytes != bytes) {
          complain(context, what.peer, chunk->header.bytes, bytes);
        }
        take(received, chunk->payload, bytes);
        from.release();
        received += bytes;
        moved = true;
      }
    }
    return moved;
  };
  while (sent < what.outgoing || received < what.incoming) {
    wait_for(context, what.peer, move);
  }
}

Partials::Partials(const Collective& collective, int ranks)
    : type_(collective.type),
      op_(collective.op),
      scale_(collective.scale),
      ranks_(ranks),
      element_(size_of(type_)),
      accumulator_(size_of(reduction::accumulator_type(type_))),
      exact_(reduction::accumulator_type(type_) == type_) {}

void Partials::widen(void* accumulator, const void* source, std::size_t count) const {
  // Of bool, widening makes 1 of every other byte that is not 0.
  if (accumulator != source || op_ == ReduceOp::kPremulSum || type_ == DataType::kBool) {
    reduction::widen(accumulator, source, count, type_, op_, scale_);
  }
}

void Partials::combine(void* accumulator, const void* other, std::size_t count) const {
  reduction::combine(accumulator, other, count, type_, op_);
}

void Partials::narrow(void* destination, const void* accumulator, std::size_t count) const {
  if (destination != accumulator || op_ == ReduceOp::kAvg) {
    reduction::narrow(destination, accumulator, count, type_, op_, ranks_);
  }
}

void Partials::finish(void* destination, const void* own, const void* other, std::size_t count,
                      void* scratch) const {
  void* accumulator = exact_ ? destination : scratch;
  widen(accumulator, own, count);
  combine(accumulator, other, count);
  narrow(destination, accumulator, count);
}

void copy_unless_same(void* destination, const void* source, std::size_t bytes) {
  if (destination != source && bytes > 0) {
    reduction::copy(destination, source, bytes, false);
  }
}

}  // namespace ljtrain::accl::algorithm
