#include <algorithm>
#include <cstring>

#include "algorithm/buffers.h"
#include "algorithm/direct.h"
#include "algorithm/exchange.h"
#include "reduction/reduction.h"

namespace ljtrain::accl::direct {
namespace {

using shared_memory::Lane;

constexpr std::size_t kAlignment = shared_memory::kCacheLine;

std::size_t chunks_of(std::size_t bytes, std::size_t chunk) { return (bytes + chunk - 1) / chunk; }

// The part of a stream of `bytes` that chunk `chunk` holds.
struct Slice {
  std::size_t offset;
  std::size_t bytes;
};
Slice slice_of(std::size_t bytes, std::size_t chunk, std::size_t chunk_bytes) {
  const std::size_t offset = std::min(bytes, chunk * chunk_bytes);
  return {.offset = offset, .bytes = std::min(chunk_bytes, bytes - offset)};
}

// Which share of the giver's slot is the taker's: nobody stages what it keeps.
std::size_t place_of(int giver, int taker) {
  return static_cast<std::size_t>(taker < giver ? taker : taker - 1);
}

// Puts chunks down one ahead of taking them, so that peers rarely wait. `stage(chunk)` fills this
// rank's slot; `take(chunk)` reads those of all peers in `givers`.
template <typename Stage, typename Take>
void pipeline(Session& session, std::size_t chunks, bool gives, std::span<const int> givers,
              Stage stage, Take take) {
  const auto put_down = [&](std::size_t chunk) {
    if (gives) {
      session.await_free(chunk);
      stage(chunk);
    }
    session.pass(Lane::kStaged, chunk + 1);
  };
  if (chunks > 0) {
    put_down(0);
  }
  session.meet_all();
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) {
      put_down(chunk + 1);
    }
    for (const int giver : givers) {
      session.await(giver, Lane::kStaged, chunk + 1);
    }
    take(chunk);
    session.pass(Lane::kConsumed, chunk + 1);
  }
  session.finish(chunks);
}

// All peers, beginning with the next one, so that ranks do not all read the same stage at once.
std::vector<int> peers_of(const Session& session) {
  std::vector<int> peers;
  for (int i = 1; i < session.ranks(); ++i) {
    peers.push_back((session.rank() + i) % session.ranks());
  }
  return peers;
}

// How the elements of one chunk are divided among the ranks that reduce them.
class Blocks {
 public:
  Blocks(std::size_t count, std::size_t element, int ranks)
      : count_(count),
        share_((count + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks)) {
    const std::size_t line = std::max<std::size_t>(1, kAlignment / element);
    share_ = (share_ + line - 1) / line * line;
  }
  std::size_t begin(int rank) const {
    return std::min(count_, static_cast<std::size_t>(rank) * share_);
  }
  std::size_t end(int rank) const { return begin(rank + 1); }

 private:
  std::size_t count_;
  std::size_t share_;
};

// all_reduce, and reduce: then only the root takes the results.
void two_step(Session& session) {
  session.enter();
  const Collective& call = session.collective();
  const int rank = session.rank();
  const int ranks = session.ranks();
  const bool takes = call.kind == OperationKind::kAllReduce || rank == call.root;
  const std::size_t element = size_of(call.type);
  const std::size_t per_chunk = session.chunk_bytes() / element;
  const std::size_t chunks = chunks_of(call.count, per_chunk);
  const bool streaming = session.is_streaming(call.count * element);
  const auto* send = static_cast<const std::byte*>(call.send);
  auto* recv = static_cast<std::byte*>(call.recv);
  const std::vector<int> peers = peers_of(session);
  std::vector<const void*> sources(static_cast<std::size_t>(ranks));
  std::vector<Scale> scales;
  const auto count_of = [&](std::size_t chunk) {
    return std::min(per_chunk, call.count - chunk * per_chunk);
  };

  const auto stage = [&](std::size_t chunk) {
    session.await_free(chunk);
    // All but this rank's own block.
    const Blocks blocks(count_of(chunk), element, ranks);
    const std::byte* from = send + chunk * per_chunk * element;
    std::byte* to = session.slot(rank, chunk);
    const std::size_t begin = blocks.begin(rank) * element;
    const std::size_t end = blocks.end(rank) * element;
    std::memcpy(to, from, begin);
    std::memcpy(to + end, from + end, count_of(chunk) * element - end);
    session.pass(Lane::kStaged, chunk + 1);
  };
  const auto reduce_block = [&](std::size_t chunk) {
    session.await_all(Lane::kStaged, chunk + 1);
    const Blocks blocks(count_of(chunk), element, ranks);
    const std::size_t begin = blocks.begin(rank) * element;
    const std::size_t at = chunk * per_chunk * element + begin;
    for (int peer = 0; peer < ranks; ++peer) {
      sources[static_cast<std::size_t>(peer)] =
          peer == rank ? send + at : session.slot(peer, chunk) + begin;
    }
    std::byte* result = session.result_slot(rank, chunk);
    reduction::reduce({.destination = takes ? recv + at : result,
                       .second_destination = takes ? result : nullptr,
                       .sources = sources,
                       .scales = scales,
                       .count = blocks.end(rank) - blocks.begin(rank),
                       .type = call.type,
                       .op = call.op,
                       .average_over = ranks,
                       .streaming = streaming && takes});
    session.pass(Lane::kResult, chunk + 1);
  };
  const auto collect = [&](std::size_t chunk) {
    const Blocks blocks(count_of(chunk), element, ranks);
    for (const int peer : takes ? std::span<const int>(peers) : std::span<const int>()) {
      session.await(peer, Lane::kResult, chunk + 1);
      const std::size_t begin = blocks.begin(peer);
      reduction::copy(recv + (chunk * per_chunk + begin) * element,
                      session.result_slot(peer, chunk), (blocks.end(peer) - begin) * element,
                      streaming);
    }
    session.pass(Lane::kConsumed, chunk + 1);
  };

  if (chunks > 0) {
    stage(0);
  }
  session.meet_all();
  scales = session.scales();
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) {
      stage(chunk + 1);
    }
    reduce_block(chunk);
    if (chunk > 0) {
      collect(chunk - 1);
    }
  }
  if (chunks > 0) {
    collect(chunks - 1);
  }
  session.finish(chunks);
}

void broadcast(Session& session) {
  session.enter();
  const Collective& call = session.collective();
  const std::size_t bytes = call.count * size_of(call.type);
  const bool streaming = session.is_streaming(bytes);
  const bool is_root = session.rank() == call.root;
  const auto* send = static_cast<const std::byte*>(call.send);
  auto* recv = static_cast<std::byte*>(call.recv);
  const std::size_t chunk_bytes = session.chunk_bytes();
  const int givers[] = {call.root};
  pipeline(
      session, chunks_of(bytes, chunk_bytes), is_root,
      is_root ? std::span<const int>() : std::span<const int>(givers),
      [&](std::size_t chunk) {
        const Slice slice = slice_of(bytes, chunk, chunk_bytes);
        std::byte* slot = session.slot(call.root, chunk);
        if (recv == send || recv == nullptr) {
          std::memcpy(slot, send + slice.offset, slice.bytes);
        } else {
          reduction::copy_to_two(recv + slice.offset, slot, send + slice.offset, slice.bytes,
                                 streaming);
        }
      },
      [&](std::size_t chunk) {
        if (!is_root) {
          const Slice slice = slice_of(bytes, chunk, chunk_bytes);
          reduction::copy(recv + slice.offset, session.slot(call.root, chunk), slice.bytes,
                          streaming);
        }
      });
}

void all_gather(Session& session) {
  session.enter();
  const Collective& call = session.collective();
  const Buffers buffers(call, session.rank());
  const std::size_t element = buffers.element();
  std::size_t longest = 0;
  std::size_t total = 0;
  for (int peer = 0; peer < session.ranks(); ++peer) {
    longest = std::max(longest, buffers.recv_count(peer) * element);
    total += buffers.recv_count(peer) * element;
  }
  const bool streaming = session.is_streaming(total);
  const std::size_t chunk_bytes = session.chunk_bytes();
  const std::size_t own = call.count * element;
  const std::vector<int> peers = peers_of(session);
  pipeline(
      session, chunks_of(longest, chunk_bytes), true, peers,
      [&](std::size_t chunk) {
        const Slice slice = slice_of(own, chunk, chunk_bytes);
        const std::byte* from = buffers.send() + slice.offset;
        std::byte* to = buffers.recv(session.rank()) + slice.offset;
        if (slice.bytes == 0) {
          return;  // this rank's share has ended, or is empty and null
        }
        if (from == to) {
          std::memcpy(session.slot(session.rank(), chunk), from, slice.bytes);
        } else {
          reduction::copy_to_two(to, session.slot(session.rank(), chunk), from, slice.bytes,
                                 streaming);
        }
      },
      [&](std::size_t chunk) {
        for (const int peer : peers) {
          const Slice slice = slice_of(buffers.recv_count(peer) * element, chunk, chunk_bytes);
          reduction::copy(buffers.recv(peer) + slice.offset, session.slot(peer, chunk), slice.bytes,
                          streaming);
        }
      });
}

void gather(Session& session) {
  session.enter();
  const Collective& call = session.collective();
  const Buffers buffers(call, session.rank());
  const bool is_root = session.rank() == call.root;
  const std::size_t chunk_bytes = session.chunk_bytes();
  const std::size_t bytes = call.count * buffers.element();
  if (is_root && buffers.recv(call.root) != buffers.send()) {
    std::memcpy(buffers.recv(call.root), buffers.send(), bytes);
  }
  const std::vector<int> peers = is_root ? peers_of(session) : std::vector<int>();
  const bool streaming = session.is_streaming(bytes * static_cast<std::size_t>(session.ranks()));
  pipeline(
      session, chunks_of(bytes, chunk_bytes), !is_root, peers,
      [&](std::size_t chunk) {
        const Slice slice = slice_of(bytes, chunk, chunk_bytes);
        std::memcpy(session.slot(session.rank(), chunk), buffers.send() + slice.offset,
                    slice.bytes);
      },
      [&](std::size_t chunk) {
        const Slice slice = slice_of(bytes, chunk, chunk_bytes);
        for (const int peer : peers) {
          reduction::copy(buffers.recv(peer) + slice.offset, session.slot(peer, chunk), slice.bytes,
                          streaming);
        }
      });
}

void reduce_scatter(Session& session) {
  session.enter();
  const Collective& call = session.collective();
  const Buffers buffers(call, session.rank());
  const int rank = session.rank();
  const int ranks = session.ranks();
  const std::size_t element = buffers.element();
  const std::size_t share =
      session.chunk_bytes() / static_cast<std::size_t>(ranks - 1) / kAlignment * kAlignment;
  std::size_t longest = 0;
  for (int peer = 0; peer < ranks; ++peer) {
    longest = std::max(longest, buffers.send_count(peer) * element);
  }
  const bool streaming = session.is_streaming(call.count * element);
  const std::vector<int> peers = peers_of(session);
  std::vector<const void*> sources(static_cast<std::size_t>(ranks));
  std::vector<Scale> scales;
  pipeline(
      session, chunks_of(longest, share), true, peers,
      [&](std::size_t chunk) {
        for (const int peer : peers) {
          const Slice slice = slice_of(buffers.send_count(peer) * element, chunk, share);
          if (slice.bytes > 0) {
            std::memcpy(session.slot(rank, chunk) + place_of(rank, peer) * share,
                        buffers.send(peer) + slice.offset, slice.bytes);
          }
        }
      },
      [&](std::size_t chunk) {
        if (chunk == 0) {
          scales = session.scales();
        }
        const Slice slice = slice_of(call.count * element, chunk, share);
        for (int peer = 0; peer < ranks; ++peer) {
          sources[static_cast<std::size_t>(peer)] =
              peer == rank ? buffers.send(rank) + slice.offset
                           : session.slot(peer, chunk) + place_of(peer, rank) * share;
        }
        reduction::reduce({.destination = buffers.recv() + slice.offset,
                           .sources = sources,
                           .scales = scales,
                           .count = slice.bytes / element,
                           .type = call.type,
                           .op = call.op,
                           .average_over = ranks,
                           .streaming = streaming});
      });
}

}  // namespace

void exchange(Session& session, bool gives, std::span<const int> givers, std::size_t longest,
              const std::function<std::size_t(int, int)>& count) {
  const Collective& call = session.collective();
  const Buffers buffers(call, session.rank());
  const int rank = session.rank();
  const std::size_t element = buffers.element();
  const std::size_t share = session.chunk_bytes() / static_cast<std::size_t>(session.ranks() - 1) /
                            kAlignment * kAlignment;
  const bool scatters = call.kind == OperationKind::kScatter;
  const bool streaming = session.is_streaming(longest * element * (scatters ? 1 : givers.size()));
  const std::vector<int> peers = peers_of(session);
  pipeline(
      session, chunks_of(longest * element, share), gives, givers,
      [&](std::size_t chunk) {
        for (const int peer : peers) {
          const Slice slice = slice_of(count(rank, peer) * element, chunk, share);
          if (slice.bytes > 0) {
            std::memcpy(session.slot(rank, chunk) + place_of(rank, peer) * share,
                        buffers.send(peer) + slice.offset, slice.bytes);
          }
        }
      },
      [&](std::size_t chunk) {
        for (const int giver : givers) {
          const Slice slice = slice_of(count(giver, rank) * element, chunk, share);
          std::byte* to = scatters ? buffers.recv() : buffers.recv(giver);
          reduction::copy(to + slice.offset,
                          session.slot(giver, chunk) + place_of(giver, rank) * share, slice.bytes,
                          streaming);
        }
      });
}

namespace {

void scatter(Session& session) {
  session.enter();
  const Collective& call = session.collective();
  const Buffers buffers(call, session.rank());
  const bool is_root = session.rank() == call.root;
  if (is_root && buffers.recv() != buffers.send(call.root)) {
    std::memcpy(buffers.recv(), buffers.send(call.root), call.count * buffers.element());
  }
  const int givers[] = {call.root};
  exchange(session, is_root, is_root ? std::span<const int>() : std::span<const int>(givers),
           call.count, [&](int, int) { return call.count; });
}

}  // namespace

void staged(Session& session) {
  switch (session.collective().kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
      two_step(session);
      break;
    case OperationKind::kBroadcast:
      broadcast(session);
      break;
    case OperationKind::kAllGather:
      all_gather(session);
      break;
    case OperationKind::kReduceScatter:
      reduce_scatter(session);
      break;
    case OperationKind::kGather:
      gather(session);
      break;
    case OperationKind::kScatter:
      scatter(session);
      break;
    default:
      break;
  }
}

}  // namespace ljtrain::accl::direct
