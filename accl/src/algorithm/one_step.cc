#include <algorithm>
#include <array>
#include <cstring>

#include "algorithm/buffers.h"
#include "algorithm/direct.h"
#include "reduction/reduction.h"

namespace ljtrain::accl::direct {
namespace {

// What fits the announcement's first cache line; what fits its second one, where vectors do not
// straddle lines. The rest goes to an area of its own.
constexpr std::size_t kInline = 48;
constexpr std::size_t kSecondLine = shared_memory::kCacheLine;
constexpr std::size_t kToSecondLine =
    shared_memory::kCacheLine - offsetof(shared_memory::RankControl::Entry, payload);
static_assert(kToSecondLine + kSecondLine <= shared_memory::kInlineBytes);
// Ranks that need no memory from the heap.
constexpr int kFew = 64;

std::size_t largest_share(std::span<const Part> parts, std::size_t count) {
  for (const Part& part : parts) {
    count = std::max(count, part.count);
  }
  return count;
}

bool puts_down(const Collective& call, int rank) {
  switch (call.kind) {
    case OperationKind::kBarrier:
      return false;
    case OperationKind::kBroadcast:
    case OperationKind::kScatter:
      return rank == call.root;
    case OperationKind::kReduce:
    case OperationKind::kGather:
      return rank != call.root;
    default:
      return true;
  }
}

// Bytes that a rank puts down.
std::size_t payload_bytes(const Collective& call, int ranks) {
  const std::size_t element = size_of(call.type);
  switch (call.kind) {
    case OperationKind::kBarrier:
      return 0;
    case OperationKind::kScatter:
      return static_cast<std::size_t>(ranks) * call.count * element;
    case OperationKind::kReduceScatter: {
      if (call.send_parts.empty()) {
        return static_cast<std::size_t>(ranks) * call.count * element;
      }
      std::size_t sum = 0;
      for (const Part& part : call.send_parts) {
        sum += part.count * element;
      }
      return sum;
    }
    case OperationKind::kAllGather:
      return largest_share(call.recv_parts, call.recv_parts.empty() ? call.count : 0) * element;
    default:
      return call.count * element;
  }
}

void put_down(const Collective& call, const Buffers& buffers, int ranks, std::byte* payload) {
  if (!call.send_parts.empty()) {
    for (int peer = 0; peer < ranks; ++peer) {
      const std::size_t bytes = buffers.send_count(peer) * buffers.element();
      if (bytes > 0) {  // an empty part may be null
        std::memcpy(payload, buffers.send(peer), bytes);
      }
      payload += bytes;
    }
    return;
  }
  const bool has_blocks =
      call.kind == OperationKind::kReduceScatter || call.kind == OperationKind::kScatter;
  const std::size_t bytes = has_blocks
                                ? static_cast<std::size_t>(ranks) * call.count * buffers.element()
                                : call.count * buffers.element();
  if (bytes > 0) {
    std::memcpy(payload, call.send, bytes);
  }
}

// Where in every rank's payload the block of this rank begins (reduce_scatter).
std::size_t block_offset(const Buffers& buffers) {
  std::size_t offset = 0;
  for (int peer = 0; peer < buffers.rank(); ++peer) {
    offset += buffers.send_count(peer) * buffers.element();
  }
  return offset;
}

void reduce_payloads(Session& session, std::span<std::byte* const> payloads, std::size_t offset) {
  const Collective& call = session.collective();
  std::array<const void*, kFew> few;
  std::vector<const void*> many;
  const auto ranks = static_cast<std::size_t>(session.ranks());
  std::span<const void*> sources(few);
  if (ranks > few.size()) {
    many.resize(ranks);
    sources = many;
  }
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    sources[peer] = payloads[peer] + offset;
  }
  // This rank's own share is where it was, if it did not put it down.
  if (!puts_down(call, session.rank())) {
    sources[static_cast<std::size_t>(session.rank())] = call.send;
  }
  const std::vector<Scale> scales = session.scales();
  reduction::reduce({.destination = call.recv,
                     .sources = sources.first(ranks),
                     .scales = scales,
                     .count = call.count,
                     .type = call.type,
                     .op = call.op,
                     .average_over = session.ranks()});
}

void take(Session& session, const Buffers& buffers, std::span<std::byte* const> payloads) {
  const Collective& call = session.collective();
  const std::size_t bytes = call.count * buffers.element();
  switch (call.kind) {
    case OperationKind::kAllReduce:
      reduce_payloads(session, payloads, 0);
      break;
    case OperationKind::kReduce:
      if (session.rank() == call.root) {
        reduce_payloads(session, payloads, 0);
      }
      break;
    case OperationKind::kReduceScatter:
      reduce_payloads(session, payloads, block_offset(buffers));
      break;
    case OperationKind::kBroadcast: {
      const void* source =
          session.rank() == call.root ? call.send : payloads[static_cast<std::size_t>(call.root)];
      if (source != call.recv) {
        std::memcpy(call.recv, source, bytes);
      }
      break;
    }
    case OperationKind::kScatter: {
      const std::byte* source = session.rank() == call.root
                                    ? buffers.send(call.root)
                                    : payloads[static_cast<std::size_t>(call.root)] +
                                          static_cast<std::size_t>(session.rank()) * bytes;
      if (source != call.recv) {
        std::memcpy(call.recv, source, bytes);
      }
      break;
    }
    case OperationKind::kGather:
    case OperationKind::kAllGather:
      if (call.kind == OperationKind::kGather && session.rank() != call.root) {
        break;
      }
      for (int peer = 0; peer < session.ranks(); ++peer) {
        const void* source =
            peer == session.rank() ? call.send : payloads[static_cast<std::size_t>(peer)];
        const std::size_t share = buffers.recv_count(peer) * buffers.element();
        if (source != buffers.recv(peer) && share > 0) {
          std::memcpy(buffers.recv(peer), source, share);
        }
      }
      break;
    default:
      break;
  }
}

}  // namespace

bool is_one_step(const Collective& call, int ranks, std::size_t limit_bytes) {
  // all_to_all decides by itself, rank by rank: only a pair of ranks knows what passes between
  // them.
  return call.kind != OperationKind::kAllToAll &&
         payload_bytes(call, ranks) <= std::min(limit_bytes, kOneShotArea);
}

void one_step(Session& session) {
  const Collective& call = session.collective();
  const Buffers buffers(call, session.rank());
  const int ranks = session.ranks();
  const std::size_t bytes = payload_bytes(call, ranks);
  const auto payload_of = [&](int owner) {
    return bytes <= kInline       ? session.inline_payload(owner)
           : bytes <= kSecondLine ? session.inline_payload(owner) + kToSecondLine
                                  : session.one_shot_area(owner);
  };
  if (bytes > 0 && puts_down(call, session.rank())) {
    put_down(call, buffers, ranks, payload_of(session.rank()));
  }
  session.enter();
  session.meet_all();
  std::array<std::byte*, kFew> few;
  std::vector<std::byte*> many(ranks > kFew ? static_cast<std::size_t>(ranks) : 0);
  const std::span<std::byte*> payloads =
      many.empty() ? std::span(few).first(static_cast<std::size_t>(ranks)) : std::span(many);
  for (int peer = 0; peer < ranks; ++peer) {
    payloads[static_cast<std::size_t>(peer)] = payload_of(peer);
  }
  take(session, buffers, payloads);
}

}  // namespace ljtrain::accl::direct
