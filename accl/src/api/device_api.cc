// What NCCL exports to hosts for its device interface. Threads of a GPU cannot work on host memory,
// so whatever serves only them is ncclInvalidUsage, and the last error says so. A rank can load and
// store its own memory and nobody else's, so its team of that kind ("LSA") is itself alone, and the
// team across those ("rail") is everybody.
#include "accl/nccl_device.h"
#include "api/arguments.h"
#include "api/comm.h"

namespace ljtrain::accl::api {
namespace {

ncclResult_t refuse(const char* function) {
  throw error(ErrorCode::kInvalidUsage,
              "{} serves threads of a GPU, which cannot work on host memory: ACCL does not have it",
              function);
}

ncclResult_t local_pointer(ncclWindow_t handle, std::size_t offset, int rank, int own_rank,
                           const Window& window, void** result) {
  if (rank != own_rank) {
    throw error(ErrorCode::kInvalidUsage,
                "the memory of rank {} in window {} cannot be addressed from rank {}: use "
                "ncclPutSignal",
                rank, static_cast<const void*>(handle), own_rank);
  }
  if (offset > window.bytes) {
    throw error(ErrorCode::kInvalidArgument, "offset {} is beyond the window's {} bytes", offset,
                window.bytes);
  }
  *result = window.data + offset;
  return ncclSuccess;
}

std::shared_ptr<Comm> owner_of(const Window& window) {
  std::shared_ptr<Comm> comm = window.owner.lock();
  if (comm == nullptr) {
    throw error(ErrorCode::kInvalidArgument, "the communicator of the window has been destroyed");
  }
  return comm;
}

// Teams have no way to report an error but an empty team, and the last error.
template <typename Body>
ncclTeam_t team(ncclComm_t handle, Body&& body) {
  ncclTeam_t made{0, 0, 0};
  guarded([&] {
    made = body(*Comm::find_created(handle));
    return ncclSuccess;
  });
  return made;
}

constexpr int kNoSuchRank = -1;

}  // namespace
}  // namespace ljtrain::accl::api

using namespace ljtrain::accl;
using namespace ljtrain::accl::api;

ncclResult_t pncclDevCommCreate(ncclComm_t, ncclDevCommRequirements_t const*, ncclDevComm_t*) {
  return guarded([] { return refuse("ncclDevCommCreate"); });
}
ACCL_ALIAS(ncclDevCommCreate);

ncclResult_t pncclDevCommDestroy(ncclComm_t, ncclDevComm_t const*) {
  return guarded([] { return refuse("ncclDevCommDestroy"); });
}
ACCL_ALIAS(ncclDevCommDestroy);

ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t, size_t, void**) {
  return guarded([] { return refuse("ncclGetLsaMultimemDevicePointer"); });
}
ACCL_ALIAS(ncclGetLsaMultimemDevicePointer);

ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t, size_t, ncclMultimemHandle_t, void**) {
  return guarded([] { return refuse("ncclGetMultimemDevicePointer"); });
}
ACCL_ALIAS(ncclGetMultimemDevicePointer);

ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank,
                                      void** outPtr) {
  return guarded([&] {
    require_pointer(outPtr, "outPtr");
    *outPtr = nullptr;
    const std::shared_ptr<Window> found = find_window(window);
    owner_of(*found);
    return local_pointer(window, offset, lsaRank, 0, *found, outPtr);
  });
}
ACCL_ALIAS(ncclGetLsaDevicePointer);

ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer,
                                       void** outPtr) {
  return guarded([&] {
    require_pointer(outPtr, "outPtr");
    *outPtr = nullptr;
    const std::shared_ptr<Window> found = find_window(window);
    const std::shared_ptr<Comm> comm = owner_of(*found);
    require_rank(peer, comm->size(), "peer");
    return local_pointer(window, offset, peer, comm->rank(), *found, outPtr);
  });
}
ACCL_ALIAS(ncclGetPeerDevicePointer);

ncclTeam_t pncclTeamWorld(ncclComm_t comm) {
  return team(comm, [](const Comm& found) { return ncclTeam_t{found.size(), found.rank(), 1}; });
}
ACCL_ALIAS(ncclTeamWorld);

ncclTeam_t pncclTeamLsa(ncclComm_t comm) {
  return team(comm, [](const Comm&) { return ncclTeam_t{1, 0, 1}; });
}
ACCL_ALIAS(ncclTeamLsa);

ncclTeam_t pncclTeamRail(ncclComm_t comm) { return pncclTeamWorld(comm); }
ACCL_ALIAS(ncclTeamRail);

int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  int world = kNoSuchRank;
  guarded([&] {
    world = Comm::find_created(comm)->rank() + (rank - team.rank) * team.stride;
    return ncclSuccess;
  });
  return world;
}
ACCL_ALIAS(ncclTeamRankToWorld);

int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
  int lsa = kNoSuchRank;
  guarded([&] {
    Comm::find_created(comm);
    lsa = (rank - team.rank) * team.stride;
    return ncclSuccess;
  });
  return lsa;
}
ACCL_ALIAS(ncclTeamRankToLsa);

ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t, int, ncclLsaBarrierHandle_t*,
                                              ncclDevResourceRequirements_t*) {
  return guarded([] { return refuse("ncclLsaBarrierCreateRequirement"); });
}
ACCL_ALIAS(ncclLsaBarrierCreateRequirement);

ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t, ncclTeam_t, int, ncclGinBarrierHandle_t*,
                                              ncclDevResourceRequirements_t*) {
  return guarded([] { return refuse("ncclGinBarrierCreateRequirement"); });
}
ACCL_ALIAS(ncclGinBarrierCreateRequirement);

ncclResult_t pncclLLA2ACreateRequirement(int, int, ncclLLA2AHandle_t*,
                                         ncclDevResourceRequirements_t*) {
  return guarded([] { return refuse("ncclLLA2ACreateRequirement"); });
}
ACCL_ALIAS(ncclLLA2ACreateRequirement);

ncclResult_t pncclGinInboxA2ACreateRequirement(void) {
  return guarded([] { return refuse("ncclGinInboxA2ACreateRequirement"); });
}
ACCL_ALIAS(ncclGinInboxA2ACreateRequirement);

ncclResult_t pncclGinOutboxCreateRequirement(void) {
  return guarded([] { return refuse("ncclGinOutboxCreateRequirement"); });
}
ACCL_ALIAS(ncclGinOutboxCreateRequirement);

// A slot holds eight bytes.
int pncclLLA2ACalcSlots(int maxElts, int maxEltSize) {
  constexpr int kSlotBytes = 8;
  return maxElts * ((maxEltSize + kSlotBytes - 1) / kSlotBytes);
}
ACCL_ALIAS(ncclLLA2ACalcSlots);
