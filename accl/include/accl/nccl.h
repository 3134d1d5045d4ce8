// The C interface of NCCL 2.29.7, declared for host memory: the names, values and layouts of
// accl/facts/nccl-2.29.7.json, which tests hold against this header and against NVIDIA's.
//
// Needs no CUDA. Where <cuda_runtime.h> is included too, before or after, cudaStream_t is the same
// type. A program written for NVIDIA's nccl.h compiles against either and runs on libaccl.so;
// whichever of the two headers comes first is the one in force.
//
// Streams: accl.h beside this file. What differs from NCCL on GPUs stands beside the functions.
// C, so what clang-tidy wants of C++ does not apply.
// NOLINTBEGIN
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(__DRIVER_TYPES_H__)
typedef struct CUstream_st* cudaStream_t;
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 29
#define NCCL_PATCH 7
#define NCCL_SUFFIX ""

// Up to 2.8 a version was coded in four digits, from 2.9 on in five.
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? ((X) * 1000 + (Y) * 100 + (Z)) : ((X) * 10000 + (Y) * 100 + (Z)))
#define NCCL_VERSION_CODE 22907

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

// ---- Handles ------------------------------------------------------------------------------------

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
#define NCCL_COMM_NULL NULL

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

// ---- Results ------------------------------------------------------------------------------------

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,  // never on hosts
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclNumResults = 8
} ncclResult_t;

// ---- Configuration ------------------------------------------------------------------------------

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_UNDEF_FLOAT -1.0f
#define NCCL_API_MAGIC 0xcafebeef

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01

// Of these, ACCL heeds `blocking` and `commName`; the others are checked and have no effect on
// hosts.
typedef struct ncclConfig_v22800 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
  int graphUsageMode;
  int numRmaCtx;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                \
  {sizeof(ncclConfig_t),  NCCL_API_MAGIC,        NCCL_VERSION_CODE,     NCCL_CONFIG_UNDEF_INT, \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
   NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT}

// estimatedTime: microseconds.
typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
  {sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT}

// ---- Types and operators ------------------------------------------------------------------------

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
// From ncclNumOps to ncclMaxRedOp: operators made by ncclRedOpCreatePreMulSum.
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

// On hosts: ncclScalarHostImmediate is read before the call returns, ncclScalarDevice when an
// operation runs.
typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

typedef enum {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

typedef struct {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

// ---- Functions ----------------------------------------------------------------------------------

// Every function exists a second time under its name with a p before it, for profilers that wrap
// the first.
#define ACCL_NCCL_FUNCTION(name, ...)   \
  ncclResult_t nccl##name(__VA_ARGS__); \
  ncclResult_t pnccl##name(__VA_ARGS__)

// Memory of the host that all ranks can map: collectives over it move data once instead of twice.
ACCL_NCCL_FUNCTION(MemAlloc, void** ptr, size_t size);
ACCL_NCCL_FUNCTION(MemFree, void* ptr);

ACCL_NCCL_FUNCTION(GetVersion, int* version);
ACCL_NCCL_FUNCTION(GetUniqueId, ncclUniqueId* uniqueId);

// Ranks are threads or processes of one host. A rank that does not come is named when the time
// (acclSetTimeout) is over. config: `blocking` and `commName` count, the rest is checked.
ACCL_NCCL_FUNCTION(CommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
ACCL_NCCL_FUNCTION(CommInitRankConfig, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                   ncclConfig_t* config);
ACCL_NCCL_FUNCTION(CommInitRankScalable, ncclComm_t* newcomm, int nranks, int myrank, int nId,
                   ncclUniqueId* commIds, ncclConfig_t* config);
// Hosts have no devices: devlist is checked for what NCCL refuses and chooses nothing.
ACCL_NCCL_FUNCTION(CommInitAll, ncclComm_t* comm, int ndev, const int* devlist);

// Finalize and Destroy wait for what this rank has issued, not for other ranks. Abort ends
// everything within a second, also a creation under way, and tells the peers who it was. Revoke by
// one rank ends the operations of all; Split and Shrink work afterwards.
ACCL_NCCL_FUNCTION(CommFinalize, ncclComm_t comm);
ACCL_NCCL_FUNCTION(CommDestroy, ncclComm_t comm);
ACCL_NCCL_FUNCTION(CommAbort, ncclComm_t comm);
ACCL_NCCL_FUNCTION(CommRevoke, ncclComm_t comm, int revokeFlags);

// splitShare and shrinkShare have no effect: the new communicator has its own memory. Shrink does
// not talk to the ranks it leaves out, so they may be dead.
ACCL_NCCL_FUNCTION(CommSplit, ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                   ncclConfig_t* config);
ACCL_NCCL_FUNCTION(CommShrink, ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                   ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);
ACCL_NCCL_FUNCTION(CommGetUniqueId, ncclComm_t comm, ncclUniqueId* uniqueId);
ACCL_NCCL_FUNCTION(CommGrow, ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                   ncclComm_t* newcomm, ncclConfig_t* config);

const char* ncclGetErrorString(ncclResult_t result);
const char* pncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
const char* pncclGetLastError(ncclComm_t comm);
void ncclResetDebugInit(void);
void pncclResetDebugInit(void);

ACCL_NCCL_FUNCTION(CommGetAsyncError, ncclComm_t comm, ncclResult_t* asyncError);
ACCL_NCCL_FUNCTION(CommCount, const ncclComm_t comm, int* count);
// Answers -1, which is cudaCpuDeviceId.
ACCL_NCCL_FUNCTION(CommCuDevice, const ncclComm_t comm, int* device);
ACCL_NCCL_FUNCTION(CommUserRank, const ncclComm_t comm, int* rank);

// Whether memory is shared is found out by each operation: registering it changes nothing.
ACCL_NCCL_FUNCTION(CommRegister, const ncclComm_t comm, void* buff, size_t size, void** handle);
ACCL_NCCL_FUNCTION(CommDeregister, const ncclComm_t comm, void* handle);
// There is no GPU memory: Suspend only refuses operations until Resume, the statistics are 0.
ACCL_NCCL_FUNCTION(CommSuspend, ncclComm_t comm, int flags);
ACCL_NCCL_FUNCTION(CommResume, ncclComm_t comm);
ACCL_NCCL_FUNCTION(CommMemStats, ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);
// Collective. Deregistering is not: no rank may put into the window any more. ncclPutSignal travels
// as a message, so the window may be any memory.
ACCL_NCCL_FUNCTION(CommWindowRegister, ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                   int winFlags);
ACCL_NCCL_FUNCTION(CommWindowDeregister, ncclComm_t comm, ncclWindow_t win);
ACCL_NCCL_FUNCTION(WinGetUserPtr, ncclComm_t comm, ncclWindow_t win, void** outUserPtr);

ACCL_NCCL_FUNCTION(RedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                   ncclScalarResidence_t residence, ncclComm_t comm);
ACCL_NCCL_FUNCTION(RedOpDestroy, ncclRedOp_t op, ncclComm_t comm);

// Counts are in elements. In place: types.h in this folder has the table.
ACCL_NCCL_FUNCTION(Reduce, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                   cudaStream_t stream);
ACCL_NCCL_FUNCTION(Bcast, void* buff, size_t count, ncclDataType_t datatype, int root,
                   ncclComm_t comm, cudaStream_t stream);
ACCL_NCCL_FUNCTION(Broadcast, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
ACCL_NCCL_FUNCTION(AllReduce, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ACCL_NCCL_FUNCTION(ReduceScatter, const void* sendbuff, void* recvbuff, size_t recvcount,
                   ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ACCL_NCCL_FUNCTION(AllGather, const void* sendbuff, void* recvbuff, size_t sendcount,
                   ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ACCL_NCCL_FUNCTION(AlltoAll, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ACCL_NCCL_FUNCTION(Gather, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
ACCL_NCCL_FUNCTION(Scatter, const void* sendbuff, void* recvbuff, size_t count,
                   ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

// A send ends when its receiver has taken it.
ACCL_NCCL_FUNCTION(Send, const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                   ncclComm_t comm, cudaStream_t stream);
ACCL_NCCL_FUNCTION(Recv, void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                   ncclComm_t comm, cudaStream_t stream);

// Any sigIdx and ctx from 0 on. ncclWaitSignal holds up the communicator's later operations.
ACCL_NCCL_FUNCTION(PutSignal, const void* localbuff, size_t count, ncclDataType_t datatype,
                   int peer, ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                   unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ACCL_NCCL_FUNCTION(Signal, int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                   cudaStream_t stream);
ACCL_NCCL_FUNCTION(WaitSignal, int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm,
                   cudaStream_t stream);

ACCL_NCCL_FUNCTION(GroupStart, void);
ACCL_NCCL_FUNCTION(GroupEnd, void);
// estimatedTime is a lower bound, from how fast this machine copies memory. Nothing is run.
ACCL_NCCL_FUNCTION(GroupSimulateEnd, ncclSimInfo_t* simInfo);

#undef ACCL_NCCL_FUNCTION

#ifdef __cplusplus
}  // extern "C"
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif  // NCCL_H_
// NOLINTEND
