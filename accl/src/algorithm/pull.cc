#include "algorithm/pull.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "algorithm/buffers.h"
#include "reduction/reduction.h"

namespace ljtrain::accl {
namespace {

using shared_memory::BufferPlaces;
using shared_memory::Descriptor;
using shared_memory::Lane;
using shared_memory::RankControl;

// More allocations than this in use at once are not kept mapped.
constexpr std::size_t kMostMappings = 512;
constexpr std::size_t kAlignment = 64;

bool gives(const Collective& call, int peer) {
  const bool rooted =
      call.kind == OperationKind::kBroadcast || call.kind == OperationKind::kScatter;
  return rooted ? peer == call.root : true;
}

bool takes(const Collective& call, int rank) {
  switch (call.kind) {
    case OperationKind::kBroadcast:
    case OperationKind::kScatter:
      return rank != call.root;
    case OperationKind::kGather:
      return rank == call.root;
    default:
      return true;
  }
}

}  // namespace

Pull::Pull(const shared_memory::Segment& segment, int rank, int ranks)
    : segment_(segment), rank_(rank), ranks_(ranks) {
  const RankControl& mine = segment.control(rank);
  for (int peer = 0; peer < ranks; ++peer) {
    const RankControl& theirs = segment.control(peer);
    one_process_ = one_process_ && theirs.pid != 0 && theirs.pid == mine.pid &&
                   theirs.process_start_time == mine.process_start_time;
  }
}

Pull::Way Pull::way_for(Session& session, bool process_read_is_faster) const {
  const Collective& call = session.collective();
  if (call.kind == OperationKind::kReduce || call.kind == OperationKind::kBarrier) {
    return Way::kNone;
  }
  const bool reduces =
      call.kind == OperationKind::kAllReduce || call.kind == OperationKind::kReduceScatter;
  // Not the peers' flags: a faster rank may set its own in this very collective, and all must
  // answer alike.
  bool can_map = may_map_;
  bool can_read = may_read_ && process_read_is_faster && !reduces;
  for (int peer = 0; peer < ranks_; ++peer) {
    const Descriptor& theirs = session.descriptor_of(peer);
    const BufferPlaces& places = session.places_of(peer);
    // Parts lie anywhere; and an all_to_all in place receives over what peers still read.
    if (theirs.has_parts != 0 || (call.kind == OperationKind::kAllToAll && theirs.in_place != 0)) {
      return Way::kNone;
    }
    const bool send_is_shared = places.send_allocation != 0 || !gives(call, peer);
    const bool recv_is_shared =
        places.recv_allocation != 0 || call.kind != OperationKind::kAllReduce;
    can_map = can_map && (one_process_ || (send_is_shared && recv_is_shared));
    can_read = can_read && segment_.control(peer).pid != 0;
  }
  return can_map ? Way::kMapped : can_read ? Way::kRead : Way::kNone;
}

bool Pull::map_buffers_of(Session& session, int peer) {
  const BufferPlaces& theirs = session.places_of(peer);
  const auto map = [&](std::uint64_t id, int descriptor, std::size_t bytes) {
    if (id == 0 || mappings_.contains({peer, id})) {
      return false;
    }
    auto& mapping = mappings_[{peer, id}];
    if (peer == rank_) {
      return true;
    }
    RankControl& mine = segment_.control(rank_);
    const std::string path = fmt::format("/proc/{}/fd/{}", segment_.control(peer).pid, descriptor);
    const base::UniqueFd memory(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!memory) {
      mine.cannot_map.store(1, std::memory_order_relaxed);
      return true;
    }
    try {
      mapping = std::make_unique<allocation::Mapping>(memory, bytes);
    } catch (const Error&) {
      mine.cannot_map.store(1, std::memory_order_relaxed);
    }
    return true;
  };
  const bool first =
      map(theirs.send_allocation, theirs.send_descriptor, theirs.send_allocation_bytes);
  return map(theirs.recv_allocation, theirs.recv_descriptor, theirs.recv_allocation_bytes) || first;
}

bool Pull::prepare(Session& session, Way way) {
  bool must_agree = false;
  if (way == Way::kRead) {
    // Those who give for the first time; every rank keeps the same list.
    for (int peer = 0; peer < ranks_; ++peer) {
      const BufferPlaces& theirs = session.places_of(peer);
      if (!gives(session.collective(), peer) || !probed_.insert(peer).second) {
        continue;
      }
      must_agree = true;
      if (peer == rank_) {
        continue;
      }
      std::byte probe{};
      const iovec local{&probe, 1};
      const iovec remote{reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
                             theirs.send_address),
                         1};
      if (::process_vm_readv(segment_.control(peer).pid, &local, 1, &remote, 1, 0) != 1) {
        segment_.control(rank_).cannot_read.store(1, std::memory_order_relaxed);
      }
    }
  } else if (!one_process_) {
    if (mappings_.size() > kMostMappings) {
      mappings_.clear();
    }
    for (int peer = 0; peer < ranks_; ++peer) {
      const std::uint64_t freed = session.places_of(peer).deallocations;
      if (deallocations_[peer] != freed) {
        deallocations_[peer] = freed;
        std::erase_if(mappings_, [&](const auto& entry) { return entry.first.first == peer; });
      }
    }
    for (int peer = 0; peer < ranks_; ++peer) {
      must_agree = map_buffers_of(session, peer) || must_agree;
    }
  }
  if (!must_agree) {
    return true;
  }
  session.pass(Lane::kStaged, 1);
  session.await_all(Lane::kStaged, 1);
  session.finish(1);
  for (int peer = 0; peer < ranks_; ++peer) {
    const RankControl& control = segment_.control(peer);
    const auto& refused = way == Way::kRead ? control.cannot_read : control.cannot_map;
    if (refused.load(std::memory_order_relaxed) != 0) {
      (way == Way::kRead ? may_read_ : may_map_) = false;
    }
  }
  return way == Way::kRead ? may_read_ : may_map_;
}

const std::byte* Pull::mapped(Session& session, int peer, bool recv) const {
  const BufferPlaces& theirs = session.places_of(peer);
  if (one_process_ || peer == rank_) {
    return reinterpret_cast<const std::byte*>(  // NOLINT(performance-no-int-to-ptr)
        recv ? theirs.recv_address : theirs.send_address);
  }
  const auto& mapping =
      mappings_.at({peer, recv ? theirs.recv_allocation : theirs.send_allocation});
  return mapping->data() + (recv ? theirs.recv_offset : theirs.send_offset);
}

void Pull::copy_from(Session& session, Way way, int peer, std::size_t offset, std::byte* to,
                     std::size_t bytes, bool streaming) {
  if (way == Way::kMapped) {
    reduction::copy(to, mapped(session, peer, false) + offset, bytes, streaming);
    return;
  }
  const int pid = segment_.control(peer).pid;
  for (std::size_t done = 0; done < bytes;) {
    const iovec local{to + done, bytes - done};
    const iovec remote{reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
                           session.places_of(peer).send_address + offset + done),
                       bytes - done};
    const ssize_t moved = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (moved <= 0) {
      if (const auto why = session.waiting().gone(peer)) {
        throw session.waiting().break_communicator(Error(ErrorCode::kRemote, *why, {peer}));
      }
      throw session.waiting().break_communicator(
          error(ErrorCode::kSystem, "cannot read the memory of {}: {}",
                session.waiting().name_peer(peer), std::strerror(errno)));
    }
    done += static_cast<std::size_t>(moved);
  }
}

void Pull::move_data(Session& session, Way way) {
  const Collective& call = session.collective();
  const Buffers buffers(call, rank_);
  const std::size_t bytes = call.count * buffers.element();
  const auto n = static_cast<std::size_t>(ranks_);
  const bool shares = call.kind == OperationKind::kAllToAll || call.kind == OperationKind::kScatter;
  const bool one_result =
      call.kind == OperationKind::kBroadcast || call.kind == OperationKind::kScatter;
  const bool streaming = session.is_streaming(one_result ? bytes : bytes * n);
  // The own share first: it may be what peers write nothing to, but they read it anyway.
  if (takes(call, rank_) || gives(call, rank_)) {
    const std::byte* from = shares && gives(call, rank_) ? buffers.send(rank_) : buffers.send();
    std::byte* to = one_result           ? buffers.recv()
                    : takes(call, rank_) ? buffers.recv(rank_)
                                         : nullptr;
    if (gives(call, rank_) && to != nullptr && from != to) {
      reduction::copy(to, from, bytes, streaming);
    }
  }
  for (int i = 1; i < ranks_ && takes(call, rank_); ++i) {
    const int peer = (rank_ + i) % ranks_;
    if (gives(call, peer)) {
      copy_from(session, way, peer, shares ? static_cast<std::size_t>(rank_) * bytes : 0,
                one_result ? buffers.recv() : buffers.recv(peer), bytes, streaming);
    }
  }
}

void Pull::reduce_scatter(Session& session) {
  const Collective& call = session.collective();
  const std::size_t bytes = call.count * size_of(call.type);
  std::vector<const void*> sources;
  for (int peer = 0; peer < ranks_; ++peer) {
    sources.push_back(mapped(session, peer, false) + static_cast<std::size_t>(rank_) * bytes);
  }
  const std::vector<Scale> scales = session.scales();
  reduction::reduce({.destination = call.recv,
                     .sources = sources,
                     .scales = scales,
                     .count = call.count,
                     .type = call.type,
                     .op = call.op,
                     .average_over = ranks_,
                     .streaming = session.is_streaming(bytes)});
}

void Pull::all_reduce(Session& session) {
  const Collective& call = session.collective();
  const std::size_t element = size_of(call.type);
  const std::size_t line = std::max<std::size_t>(1, kAlignment / element);
  std::size_t share =
      (call.count + static_cast<std::size_t>(ranks_) - 1) / static_cast<std::size_t>(ranks_);
  share = (share + line - 1) / line * line;
  const auto begin = [&](int rank) {
    return std::min(call.count, static_cast<std::size_t>(rank) * share);
  };
  const bool streaming = session.is_streaming(call.count * element);
  auto* recv = static_cast<std::byte*>(call.recv);
  std::vector<const void*> sources;
  for (int peer = 0; peer < ranks_; ++peer) {
    sources.push_back(mapped(session, peer, false) + begin(rank_) * element);
  }
  const std::vector<Scale> scales = session.scales();
  reduction::reduce({.destination = recv + begin(rank_) * element,
                     .sources = sources,
                     .scales = scales,
                     .count = begin(rank_ + 1) - begin(rank_),
                     .type = call.type,
                     .op = call.op,
                     .average_over = ranks_,
                     .streaming = streaming});
  // Peers have read what this rank is about to overwrite (in place), and their blocks are ready.
  session.pass(Lane::kResult, 1);
  session.await_all(Lane::kResult, 1);
  for (int i = 1; i < ranks_; ++i) {
    const int peer = (rank_ + i) % ranks_;
    reduction::copy(recv + begin(peer) * element,
                    mapped(session, peer, true) + begin(peer) * element,
                    (begin(peer + 1) - begin(peer)) * element, streaming);
  }
}

bool Pull::try_run(Session& session, bool process_read_is_faster) {
  const Way way = way_for(session, process_read_is_faster);
  if (way == Way::kNone || !prepare(session, way)) {
    return false;
  }
  switch (session.collective().kind) {
    case OperationKind::kAllReduce:
      all_reduce(session);
      break;
    case OperationKind::kReduceScatter:
      reduce_scatter(session);
      break;
    default:
      move_data(session, way);
      break;
  }
  // The buffers are the caller's again when all peers have read them.
  session.pass(Lane::kConsumed, 1);
  session.await_all(Lane::kConsumed, 1);
  session.finish(1);
  return true;
}

}  // namespace ljtrain::accl
