#include "communicator/arguments.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "accl/error.h"
#include "communicator/allocation.h"

namespace ljtrain::accl {
namespace {

struct Needs {
  bool send = true;
  bool recv = true;
  bool send_parts = false;  // may be given as parts
  bool recv_parts = false;
};

Needs needs_of(const Collective& call, int rank) {
  const bool is_root = rank == call.root;
  switch (call.kind) {
    case OperationKind::kBarrier:
      return {.send = false, .recv = false};
    case OperationKind::kBroadcast:
      return {.send = is_root, .recv = true};
    case OperationKind::kReduce:
      return {.send = true, .recv = is_root};
    case OperationKind::kAllGather:
      return {.recv_parts = true};
    case OperationKind::kReduceScatter:
      return {.send_parts = true};
    case OperationKind::kAllToAll:
      return {.send_parts = true, .recv_parts = true};
    case OperationKind::kGather:
      return {.send = true, .recv = is_root, .recv_parts = is_root};
    case OperationKind::kScatter:
      return {.send = is_root, .recv = true, .send_parts = is_root};
    default:
      return {};
  }
}

bool is_rooted(OperationKind kind) {
  return kind == OperationKind::kBroadcast || kind == OperationKind::kReduce ||
         kind == OperationKind::kGather || kind == OperationKind::kScatter;
}

bool is_reduction(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
         kind == OperationKind::kReduceScatter;
}

void check_count(std::string_view what, OperationKind kind, std::size_t count, std::size_t element,
                 std::size_t times) {
  if (count > std::numeric_limits<std::size_t>::max() / 4 / element / times) {
    throw error(ErrorCode::kInvalidArgument, "{}: {} of {} elements is out of range", name_of(kind),
                what, count);
  }
}

void check_parts(std::string_view side, const Collective& call, std::span<const Part> parts,
                 int rank, int ranks) {
  if (parts.size() != static_cast<std::size_t>(ranks)) {
    throw error(ErrorCode::kInvalidArgument, "{}: {} {} parts for {} ranks", name_of(call.kind),
                parts.size(), side, ranks);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    check_count(side, call.kind, parts[i].count, size_of(call.type), parts.size());
    if (parts[i].data == nullptr && parts[i].count > 0) {
      throw error(ErrorCode::kInvalidArgument, "{}: the {} part of rank {} is null",
                  name_of(call.kind), side, i);
    }
    const bool must_equal = call.kind == OperationKind::kGather ||
                            call.kind == OperationKind::kScatter ||
                            (call.kind != OperationKind::kAllToAll && std::cmp_equal(i, rank));
    if (must_equal && parts[i].count != call.count) {
      throw error(ErrorCode::kInvalidArgument,
                  "{}: the {} part of rank {} has {} elements, this rank's share has {}",
                  name_of(call.kind), side, i, parts[i].count, call.count);
    }
  }
}

std::uint64_t shares_of(std::span<const Part> parts) {
  if (std::ranges::all_of(parts, [&](const Part& part) { return part.count == parts[0].count; })) {
    return 0;
  }
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const Part& part : parts) {
    hash = (hash ^ part.count) * 0x100000001b3ULL;
    hash ^= hash >> 29;
  }
  return hash | 1;
}

}  // namespace

void check_arguments(const Collective& call, int rank, int ranks) {
  const auto kind = static_cast<int>(call.kind);
  const auto type = static_cast<int>(call.type);
  const auto op = static_cast<int>(call.op);
  if (kind >= kOperationKinds || type >= kDataTypes || op >= kReduceOps) {
    throw error(ErrorCode::kInvalidArgument, "unknown operation {}, data type {} or operator {}",
                kind, type, op);
  }
  if (is_rooted(call.kind) && (call.root < 0 || call.root >= ranks)) {
    throw error(ErrorCode::kInvalidArgument, "{}: root {} is not one of the {} ranks",
                name_of(call.kind), call.root, ranks);
  }
  if (is_reduction(call.kind) && !is_supported(call.type, call.op)) {
    throw error(ErrorCode::kInvalidArgument, "{}: {} of {} has no meaning", name_of(call.kind),
                name_of(call.op), name_of(call.type));
  }
  check_count("a count", call.kind, call.count, size_of(call.type),
              static_cast<std::size_t>(ranks));
  const Needs needs = needs_of(call, rank);
  const bool has_send_parts = call.kind == OperationKind::kReduceScatter ||
                              call.kind == OperationKind::kAllToAll ||
                              call.kind == OperationKind::kScatter;
  const bool has_recv_parts = call.kind == OperationKind::kAllGather ||
                              call.kind == OperationKind::kAllToAll ||
                              call.kind == OperationKind::kGather;
  if ((!call.send_parts.empty() && !has_send_parts) ||
      (!call.recv_parts.empty() && !has_recv_parts)) {
    throw error(ErrorCode::kInvalidArgument, "{}: parts have no meaning on that side",
                name_of(call.kind));
  }
  if (needs.send_parts && !call.send_parts.empty()) {
    check_parts("send", call, call.send_parts, rank, ranks);
  } else if (needs.send && call.send == nullptr && call.count > 0) {
    throw error(ErrorCode::kInvalidArgument, "{}: the send buffer is null", name_of(call.kind));
  }
  if (needs.recv_parts && !call.recv_parts.empty()) {
    check_parts("receive", call, call.recv_parts, rank, ranks);
  } else if (needs.recv && call.recv == nullptr && call.count > 0) {
    throw error(ErrorCode::kInvalidArgument, "{}: the receive buffer is null", name_of(call.kind));
  }
}

shared_memory::Descriptor make_descriptor(const Collective& call, std::uint64_t sequence) {
  shared_memory::Descriptor told{};
  told.sequence = sequence;
  told.kind = call.kind;
  told.type = call.type;
  told.op = is_reduction(call.kind) ? call.op : ReduceOp::kSum;
  told.root = is_rooted(call.kind) ? call.root : 0;
  told.scale = call.scale;
  told.has_parts = call.send_parts.empty() && call.recv_parts.empty() ? 0 : 1;
  if (call.kind == OperationKind::kAllGather && !call.recv_parts.empty()) {
    told.shares = shares_of(call.recv_parts);
  } else if (call.kind == OperationKind::kReduceScatter && !call.send_parts.empty()) {
    told.shares = shares_of(call.send_parts);
  }
  // What each pair exchanges in an all_to_all is compared on its own.
  told.count = told.shares != 0 || call.kind == OperationKind::kAllToAll ? 0 : call.count;
  told.in_place = call.send == call.recv ? 1 : 0;
  return told;
}

shared_memory::BufferPlaces find_buffers(const Collective& call, int rank, int ranks) {
  shared_memory::BufferPlaces told{};
  told.send_address = reinterpret_cast<std::uint64_t>(call.send);
  told.recv_address = reinterpret_cast<std::uint64_t>(call.recv);
  told.deallocations = allocation::deallocations();
  const std::size_t bytes = call.count * size_of(call.type);
  const bool many_sent = call.kind == OperationKind::kReduceScatter ||
                         call.kind == OperationKind::kAllToAll ||
                         call.kind == OperationKind::kScatter;
  const bool is_root = rank == call.root;
  if (call.send != nullptr && (call.kind != OperationKind::kScatter || is_root) &&
      (call.kind != OperationKind::kBroadcast || is_root)) {
    const auto place =
        allocation::find(call.send, many_sent ? bytes * static_cast<std::size_t>(ranks) : bytes);
    told.send_allocation = place.id;
    told.send_offset = place.offset;
    told.send_descriptor = place.descriptor;
    told.send_allocation_bytes = place.bytes;
  }
  if (call.recv != nullptr && call.kind == OperationKind::kAllReduce) {
    const auto place = allocation::find(call.recv, bytes);
    told.recv_allocation = place.id;
    told.recv_offset = place.offset;
    told.recv_descriptor = place.descriptor;
    told.recv_allocation_bytes = place.bytes;
  }
  return told;
}

}  // namespace ljtrain::accl
