// The functions that NCCL 2.29.7 exports to hosts for its device interface (nccl_device.h in
// NVIDIA's package). A GPU's threads cannot run on host memory, so ACCL answers ncclInvalidUsage
// where one of them would be needed; the ones that only ask (properties, teams) have true answers.
#pragma once

// C, so what clang-tidy wants of C++ does not apply.
// NOLINTBEGIN
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "accl/nccl.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclDevComm ncclDevComm_t;  // lives on a device

// Ranks rank + k * stride of a communicator; `rank` is the caller's place among nRanks.
typedef struct ncclTeam {
  int nRanks, rank, stride;
} ncclTeam_t;

typedef struct ncclMultimemHandle {
  void* mcBasePtr;
} ncclMultimemHandle_t;

typedef uint32_t ncclDevResourceHandle_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;

typedef struct ncclLsaBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
} ncclLsaBarrierHandle_t;

typedef struct ncclGinBarrierHandle {
  ncclGinSignal_t signal0;
  ncclDevResourceHandle_t unused;
} ncclGinBarrierHandle_t;

typedef struct ncclLLA2AHandle {
  ncclDevResourceHandle_t bufHandle;
  uint32_t nSlots;
} ncclLLA2AHandle_t;

typedef enum {
  NCCL_GIN_CONNECTION_NONE = 0,
  NCCL_GIN_CONNECTION_FULL = 1,
  NCCL_GIN_CONNECTION_RAIL = 2
} ncclGinConnectionType_t;

typedef enum {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3
} ncclGinType_t;

typedef struct ncclDevResourceRequirements {
  struct ncclDevResourceRequirements* next;
  size_t bufferSize, bufferAlign;
  ncclDevResourceHandle_t* outBufferHandle;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinSignal_t* outGinSignalStart;
  ncclGinCounter_t* outGinCounterStart;
} ncclDevResourceRequirements_t;

typedef struct ncclTeamRequirements {
  struct ncclTeamRequirements* next;
  ncclTeam_t team;
  bool multimem;
  ncclMultimemHandle_t* outMultimemHandle;
} ncclTeamRequirements_t;

typedef struct ncclDevCommRequirements {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclDevResourceRequirements_t* resourceRequirementsList;
  ncclTeamRequirements_t* teamRequirementsList;
  bool lsaMultimem;
  int barrierCount;
  int lsaBarrierCount;
  int railGinBarrierCount;
  int lsaLLA2ABlockCount, lsaLLA2ASlotCount;
  bool ginForceEnable;
  int ginContextCount;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinConnectionType_t ginConnectionType;
  bool ginExclusiveContexts;
  int ginQueueDepth;
} ncclDevCommRequirements_t;

typedef struct ncclCommProperties {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  ncclGinType_t railedGinType;
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER \
  {sizeof(ncclCommProperties_t),         \
   NCCL_API_MAGIC,                       \
   NCCL_VERSION_CODE,                    \
   0,                                    \
   0,                                    \
   0,                                    \
   0,                                    \
   false,                                \
   false,                                \
   NCCL_GIN_TYPE_NONE,                   \
   0,                                    \
   false,                                \
   NCCL_GIN_TYPE_NONE}

#define ACCL_NCCL_FUNCTION(type, name, ...) \
  type nccl##name(__VA_ARGS__);             \
  type pnccl##name(__VA_ARGS__)

ACCL_NCCL_FUNCTION(ncclResult_t, CommQueryProperties, ncclComm_t comm,
                   ncclCommProperties_t* properties);
ACCL_NCCL_FUNCTION(ncclResult_t, DevCommCreate, ncclComm_t comm,
                   ncclDevCommRequirements_t const* requirements, ncclDevComm_t* outDevComm);
ACCL_NCCL_FUNCTION(ncclResult_t, DevCommDestroy, ncclComm_t comm, ncclDevComm_t const* devComm);

ACCL_NCCL_FUNCTION(ncclResult_t, GetLsaMultimemDevicePointer, ncclWindow_t window, size_t offset,
                   void** outPtr);
ACCL_NCCL_FUNCTION(ncclResult_t, GetMultimemDevicePointer, ncclWindow_t window, size_t offset,
                   ncclMultimemHandle_t multimem, void** outPtr);
ACCL_NCCL_FUNCTION(ncclResult_t, GetLsaDevicePointer, ncclWindow_t window, size_t offset,
                   int lsaRank, void** outPtr);
ACCL_NCCL_FUNCTION(ncclResult_t, GetPeerDevicePointer, ncclWindow_t window, size_t offset, int peer,
                   void** outPtr);

ACCL_NCCL_FUNCTION(ncclTeam_t, TeamWorld, ncclComm_t comm);
ACCL_NCCL_FUNCTION(ncclTeam_t, TeamLsa, ncclComm_t comm);
ACCL_NCCL_FUNCTION(ncclTeam_t, TeamRail, ncclComm_t comm);
ACCL_NCCL_FUNCTION(int, TeamRankToWorld, ncclComm_t comm, ncclTeam_t team, int rank);
ACCL_NCCL_FUNCTION(int, TeamRankToLsa, ncclComm_t comm, ncclTeam_t team, int rank);

ACCL_NCCL_FUNCTION(ncclResult_t, LsaBarrierCreateRequirement, ncclTeam_t team, int nBarriers,
                   ncclLsaBarrierHandle_t* outHandle, ncclDevResourceRequirements_t* outReq);
ACCL_NCCL_FUNCTION(ncclResult_t, GinBarrierCreateRequirement, ncclComm_t comm, ncclTeam_t team,
                   int nBarriers, ncclGinBarrierHandle_t* outHandle,
                   ncclDevResourceRequirements_t* outReq);
ACCL_NCCL_FUNCTION(int, LLA2ACalcSlots, int maxElts, int maxEltSize);
ACCL_NCCL_FUNCTION(ncclResult_t, LLA2ACreateRequirement, int nBlocks, int nSlots,
                   ncclLLA2AHandle_t* outHandle, ncclDevResourceRequirements_t* outReq);

#undef ACCL_NCCL_FUNCTION

// Exported, but declared in no header that NVIDIA ships: callers cannot know their arguments, so
// none is declared here, and the answer is ncclInvalidUsage. ncclResetDebugInitInternal is what
// ncclResetDebugInit calls.
ncclResult_t ncclGinInboxA2ACreateRequirement(void);
ncclResult_t pncclGinInboxA2ACreateRequirement(void);
ncclResult_t ncclGinOutboxCreateRequirement(void);
ncclResult_t pncclGinOutboxCreateRequirement(void);
void ncclResetDebugInitInternal(void);

#ifdef __cplusplus
}  // extern "C"
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
// NOLINTEND
