// How communicators are made: from an id, and from other communicators.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "api/arguments.h"
#include "api/comm.h"
#include "api/derived_id.h"
#include "api/group.h"

namespace ljtrain::accl::api {
namespace {

UniqueId to_id(const ncclUniqueId& id) {
  UniqueId converted;
  static_assert(sizeof(converted.bytes) == sizeof(id.internal));
  std::memcpy(converted.bytes.data(), id.internal, sizeof(id.internal));
  return converted;
}

void to_nccl(const UniqueId& id, ncclUniqueId& converted) {
  std::memcpy(converted.internal, id.bytes.data(), sizeof(converted.internal));
}

// Where a new communicator comes from, once its ranks have agreed.
struct Membership {
  UniqueId id;
  int rank;
  int size;
};

void create(Comm& made, const Membership& member, const char* function) {
  trace::announce_version(member.rank);
  trace::warn_unsupported_environment();
  const auto describe = [&](const char* state) {
    trace::info(trace::kInit, member.rank,
                "{} comm {} rank {} nranks {} cudaDev -1 commId {:#x}{}{} - Init {}", function,
                static_cast<const void*>(&made), member.rank, member.size, hash_of(member.id),
                made.settings().name.empty() ? "" : " commName ", made.settings().name, state);
  };
  describe("START");
  made.complete(member.id, member.rank, member.size);
  describe("COMPLETE");
}

// A job that ends with a new communicator in `*result`, or, when it fails, with NULL there
// (blocking) or with the failure in its state (non-blocking: the caller polls the handle).
ncclResult_t submit_creation(const CommSettings& settings, ncclComm_t* result,
                             std::shared_ptr<Comm> ordered_on, const char* function,
                             std::function<Membership()> join) {
  const std::shared_ptr<Comm> made = Comm::make(settings);
  *result = made->handle();
  Job job{.subject = made,
          .ordered_on = std::move(ordered_on),
          .run = [made, function, join = std::move(join)] { create(*made, join(), function); },
          .undo =
              [made, result](const Failure& failure) {
                if (made->is_blocking()) {
                  made->forget();
                  *result = nullptr;
                } else {
                  made->note_creation_failure(failure);
                }
              }};
  try {
    return submit(std::move(job));
  } catch (...) {  // the group does not take it
    made->forget();
    *result = nullptr;
    throw;
  }
}

void require_size(int ranks) {
  if (ranks < 1) {
    throw error(ErrorCode::kInvalidArgument, "nranks is {}: it must be at least 1", ranks);
  }
}

ncclResult_t init_rank(ncclComm_t* comm, int nranks, const UniqueId& id, int rank,
                       const ncclConfig_t* config, const char* function) {
  require_pointer(comm, "comm");
  *comm = nullptr;
  require_size(nranks);
  require_rank(rank, nranks, "rank");
  return submit_creation(read_config(config, {}), comm, nullptr, function,
                         [=] { return Membership{id, rank, nranks}; });
}

ncclResult_t init_all(ncclComm_t* comms, int count, const int* devices) {
  require_pointer(comms, "comm");
  if (count < 0) {
    throw error(ErrorCode::kInvalidArgument, "ndev is {}", count);
  }
  std::set<int> seen;
  for (int i = 0; devices != nullptr && i < count; ++i) {
    // A host has no devices to choose from; what could not be meant on GPUs is refused all the
    // same.
    if (devices[i] < 0) {
      throw error(ErrorCode::kInvalidArgument, "devlist[{}] is {}", i, devices[i]);
    }
    if (!seen.insert(devices[i]).second) {
      throw error(ErrorCode::kInvalidUsage, "device {} is in devlist twice", devices[i]);
    }
  }
  const UniqueId id = new_unique_id();
  pncclGroupStart();
  try {
    for (int rank = 0; rank < count; ++rank) {
      init_rank(&comms[rank], count, id, rank, nullptr, "ncclCommInitAll");
    }
  } catch (const std::exception& cause) {
    note_group_failure(make_failure(cause).result);
    pncclGroupEnd();
    throw;
  }
  return pncclGroupEnd();
}

// ---- Split --------------------------------------------------------------------------------------

struct SplitRequest {
  std::int32_t color;
  std::int32_t key;
};

// What every rank of the parent asks for. After a revocation the parent cannot carry it; then a
// communicator of its own does, made for that and dropped.
std::vector<SplitRequest> exchange(Comm& parent, SplitRequest own, std::uint64_t number) {
  std::vector<SplitRequest> all(static_cast<std::size_t>(parent.size()));
  const Collective collective{.kind = OperationKind::kAllGather,
                              .send = &own,
                              .recv = all.data(),
                              .count = sizeof(own),
                              .type = DataType::kUint8};
  if ((parent.obstacles() & kRevoked) == 0) {
    parent.core().run(collective);
    return all;
  }
  CommunicatorOptions options;
  options.timeout = parent.timeout();
  Communicator::create(derive_id(parent.id(), "split of a revoked communicator", {{number}}),
                       parent.rank(), parent.size(), options)
      ->run(collective);
  return all;
}

Membership split(Comm& parent, SplitRequest own, std::uint64_t number) {
  const std::vector<SplitRequest> all = exchange(parent, own, number);
  // Ordered by key; ranks of the same key keep the parent's order.
  std::vector<std::pair<int, int>> members;
  for (int rank = 0; rank < parent.size(); ++rank) {
    const SplitRequest& request = all[static_cast<std::size_t>(rank)];
    if (request.color == own.color) {
      members.emplace_back(request.key, rank);
    }
  }
  std::ranges::sort(members);
  const auto place = std::ranges::find(members, std::pair(own.key, parent.rank()));
  return {derive_id(parent.id(), "split", {{number, static_cast<std::uint64_t>(own.color)}}),
          static_cast<int>(place - members.begin()), static_cast<int>(members.size())};
}

// Of a parent that may be revoked but not otherwise out of order.
std::shared_ptr<Comm> find_parent(ncclComm_t handle) {
  std::shared_ptr<Comm> parent = Comm::find(handle);
  if ((parent->obstacles() & ~static_cast<std::uint32_t>(kRevoked)) != 0) {
    parent->require_ready();
  }
  return parent;
}

// Once revoked, the turns are over; whoever has come so far is alone anyway.
std::shared_ptr<Comm> order_of(const std::shared_ptr<Comm>& parent) {
  return (parent->obstacles() & kRevoked) != 0 ? nullptr : parent;
}

ncclResult_t comm_split(ncclComm_t handle, int color, int key, ncclComm_t* result,
                        const ncclConfig_t* config) {
  const std::shared_ptr<Comm> parent = find_parent(handle);
  require_pointer(result, "newcomm");
  *result = nullptr;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    throw error(ErrorCode::kInvalidArgument,
                "color is {}: it must be at least 0, or NCCL_SPLIT_NOCOLOR", color);
  }
  const CommSettings settings = read_config(config, parent->settings());
  const SplitRequest own{color, key};
  const std::uint64_t number = parent->next_split();
  if (color == NCCL_SPLIT_NOCOLOR) {
    return submit({.subject = parent,
                   .ordered_on = order_of(parent),
                   .run = [parent, own, number] { exchange(*parent, own, number); },
                   .undo = [](const Failure&) {}});
  }
  return submit_creation(settings, result, order_of(parent), "ncclCommSplit",
                         [parent, own, number] { return split(*parent, own, number); });
}

// ---- Shrink -------------------------------------------------------------------------------------

// Ranks that are gone cannot be asked, so the survivors agree by what they all know: the parent,
// how often it has been shrunk, and who is left out.
Membership shrink(const Comm& parent, const std::set<int>& excluded, std::uint64_t number, int rank,
                  int size) {
  std::vector<std::uint64_t> numbers{number};
  numbers.insert(numbers.end(), excluded.begin(), excluded.end());
  const auto before = std::ranges::count_if(excluded, [&](int gone) { return gone < rank; });
  return {derive_id(parent.id(), "shrink", numbers), rank - static_cast<int>(before),
          size - static_cast<int>(excluded.size())};
}

ncclResult_t comm_shrink(ncclComm_t handle, const int* list, int count, ncclComm_t* result,
                         const ncclConfig_t* config, int flags) {
  const std::shared_ptr<Comm> parent = Comm::find_created(handle);
  require_pointer(result, "newcomm");
  *result = nullptr;
  require_flags(static_cast<unsigned>(flags), NCCL_SHRINK_ABORT, "shrinkFlags");
  require_pointer(list, "excludeRanksList");
  if (count < 1) {
    throw error(ErrorCode::kInvalidArgument, "excludeRanksCount is {}: it must be at least 1",
                count);
  }
  std::set<int> excluded;
  for (int i = 0; i < count; ++i) {
    require_rank(list[i], parent->size(), "excluded rank");
    excluded.insert(list[i]);
  }
  if (excluded.contains(parent->rank())) {
    throw error(ErrorCode::kInvalidArgument,
                "rank {} is in excludeRanksList: only ranks that stay call ncclCommShrink",
                parent->rank());
  }
  const bool aborts = flags == NCCL_SHRINK_ABORT;
  if (!aborts && (parent->obstacles() & ~static_cast<std::uint32_t>(kRevoked)) != 0) {
    parent->require_ready();
  }
  const CommSettings settings = read_config(config, parent->settings());
  if (aborts) {
    parent->stop(kRevoked, "by ncclCommShrink");
  }
  const std::uint64_t number = parent->next_shrink();
  return submit_creation(settings, result, order_of(parent), "ncclCommShrink",
                         [parent, excluded, number] {
                           return shrink(*parent, excluded, number, parent->rank(), parent->size());
                         });
}

// ---- Grow ---------------------------------------------------------------------------------------

struct GrowthOffer {
  std::uint8_t is_root;
  UniqueId id;
};

// Only the root of the growth has its id: everybody learns it from there.
UniqueId agree_on_growth(Comm& parent, const std::optional<UniqueId>& own) {
  const GrowthOffer offer{static_cast<std::uint8_t>(own ? 1 : 0), own.value_or(UniqueId{})};
  std::vector<GrowthOffer> all(static_cast<std::size_t>(parent.size()));
  parent.core().run({.kind = OperationKind::kAllGather,
                     .send = &offer,
                     .recv = all.data(),
                     .count = sizeof(offer),
                     .type = DataType::kUint8});
  const auto roots = std::ranges::count(all, 1, &GrowthOffer::is_root);
  if (roots != 1) {
    throw error(ErrorCode::kInvalidUsage,
                "{} ranks passed a uniqueId to ncclCommGrow: exactly one must, the one that called "
                "ncclCommGetUniqueId",
                roots);
  }
  return std::ranges::find(all, 1, &GrowthOffer::is_root)->id;
}

ncclResult_t grow_member(ncclComm_t handle, int nranks, const ncclUniqueId* id, int rank,
                         ncclComm_t* result, const ncclConfig_t* config) {
  const std::shared_ptr<Comm> parent = Comm::find_ready(handle);
  if (rank != -1) {
    throw error(ErrorCode::kInvalidArgument, "rank is {}: members keep their rank and pass -1",
                rank);
  }
  if (nranks <= parent->size()) {
    throw error(ErrorCode::kInvalidArgument, "nRanks is {}, and the communicator has {} already",
                nranks, parent->size());
  }
  std::optional<UniqueId> own;
  if (id != nullptr) {
    own = to_id(*id);
    if (!parent->growth_id || parent->growth_id->bytes != own->bytes) {
      throw error(ErrorCode::kInvalidArgument,
                  "uniqueId is not the one that ncclCommGetUniqueId made for this communicator, or "
                  "has been used");
    }
    parent->growth_id.reset();
  }
  return submit_creation(read_config(config, parent->settings()), result, parent, "ncclCommGrow",
                         [parent, own, nranks] {
                           return Membership{agree_on_growth(*parent, own), parent->rank(), nranks};
                         });
}

ncclResult_t comm_grow(ncclComm_t handle, int nranks, const ncclUniqueId* id, int rank,
                       ncclComm_t* result, const ncclConfig_t* config) {
  require_pointer(result, "newcomm");
  *result = nullptr;
  if (handle != nullptr) {
    return grow_member(handle, nranks, id, rank, result, config);
  }
  require_pointer(id, "uniqueId");
  return init_rank(result, nranks, to_id(*id), rank, config, "ncclCommGrow");
}

}  // namespace
}  // namespace ljtrain::accl::api

using namespace ljtrain::accl;
using namespace ljtrain::accl::api;

ncclResult_t pncclGetUniqueId(ncclUniqueId* uniqueId) {
  return guarded([&] {
    require_pointer(uniqueId, "uniqueId");
    to_nccl(new_unique_id(), *uniqueId);
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclGetUniqueId);

ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return guarded(
      [&] { return init_rank(comm, nranks, to_id(commId), rank, nullptr, "ncclCommInitRank"); });
}
ACCL_ALIAS(ncclCommInitRank);

ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t* config) {
  return guarded([&] {
    return init_rank(comm, nranks, to_id(commId), rank, config, "ncclCommInitRankConfig");
  });
}
ACCL_ALIAS(ncclCommInitRankConfig);

ncclResult_t pncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId* commIds, ncclConfig_t* config) {
  return guarded([&] {
    require_pointer(newcomm, "newcomm");
    *newcomm = nullptr;
    require_pointer(commIds, "commIds");
    if (nId < 1 || nId > nranks) {
      throw error(ErrorCode::kInvalidArgument, "nId is {}: it must be 1 to nranks, {}", nId,
                  nranks);
    }
    // Ids beyond the first save nothing on one host, but they must be the same everywhere: all of
    // them make the name.
    UniqueId id = to_id(commIds[0]);
    for (int i = 1; i < nId; ++i) {
      const UniqueId next = to_id(commIds[i]);
      id = derive_id(id, std::string_view(next.bytes.data(), next.bytes.size()), {});
    }
    return init_rank(newcomm, nranks, id, myrank, config, "ncclCommInitRankScalable");
  });
}
ACCL_ALIAS(ncclCommInitRankScalable);

ncclResult_t pncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  return guarded([&] { return init_all(comm, ndev, devlist); });
}
ACCL_ALIAS(ncclCommInitAll);

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                            ncclConfig_t* config) {
  return guarded([&] { return comm_split(comm, color, key, newcomm, config); });
}
ACCL_ALIAS(ncclCommSplit);

ncclResult_t pncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                             ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags) {
  return guarded([&] {
    return comm_shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags);
  });
}
ACCL_ALIAS(ncclCommShrink);

ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId) {
  return guarded([&] {
    const std::shared_ptr<Comm> parent = Comm::find_ready(comm);
    require_pointer(uniqueId, "uniqueId");
    if (parent->growth_id) {
      throw error(ErrorCode::kInvalidUsage,
                  "the last id of ncclCommGetUniqueId has not been used by ncclCommGrow yet");
    }
    parent->growth_id = new_unique_id();
    to_nccl(*parent->growth_id, *uniqueId);
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommGetUniqueId);

ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                           ncclComm_t* newcomm, ncclConfig_t* config) {
  return guarded([&] { return comm_grow(comm, nRanks, uniqueId, rank, newcomm, config); });
}
ACCL_ALIAS(ncclCommGrow);
