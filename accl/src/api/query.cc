// What callers ask: versions, sizes, errors.
#include <algorithm>
#include <array>
#include <cstring>

#include "accl/accl.h"
#include "accl/nccl_device.h"
#include "api/arguments.h"
#include "api/comm.h"

namespace ljtrain::accl::api {
namespace {

// By ncclResult_t.
constexpr std::array<const char*, ncclNumResults> kResultTexts = {
    "success",
    "a CUDA call failed",
    "the operating system refused a call; NCCL_DEBUG=WARN shows which",
    "internal error of the library: please report it",
    "invalid argument; NCCL_DEBUG=WARN shows which",
    "invalid usage; NCCL_DEBUG=WARN shows why",
    "a remote rank failed, ended, or did not come in time",
    "an operation is in progress"};

// A host's memory has no device number; CUDA's own name for the host is cudaCpuDeviceId.
constexpr int kCpuDevice = -1;

// The newer of the thread's last error and the communicator's, if that handle means any.
const Failure& last_failure(ncclComm_t handle, Failure& memory) {
  const Failure& own = thread_failure();
  if (handle == nullptr) {
    return own;
  }
  try {
    if (std::optional<Failure> failed = Comm::find(handle)->failure();
        failed && failed->sequence > own.sequence) {
      memory = std::move(*failed);
      return memory;
    }
    return own;
  } catch (const Error&) {
    return own;  // no communicator (any more): the thread's error says so, as a rule
  }
}

}  // namespace
}  // namespace ljtrain::accl::api

using namespace ljtrain::accl;
using namespace ljtrain::accl::api;

ncclResult_t pncclGetVersion(int* version) {
  return guarded([&] {
    require_pointer(version, "version");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclGetVersion);

const char* pncclGetErrorString(ncclResult_t result) {
  const auto index = static_cast<std::size_t>(static_cast<unsigned>(result));
  return index < kResultTexts.size() ? kResultTexts[index] : "unknown result code";
}
ACCL_ALIAS(ncclGetErrorString);

const char* pncclGetLastError(ncclComm_t comm) {
  thread_local Failure memory;
  return last_failure(comm, memory).text.c_str();
}
ACCL_ALIAS(ncclGetLastError);

size_t acclLastError(ncclComm_t comm, char* text, size_t size) {
  Failure memory;
  const std::string& whole = last_failure(comm, memory).text;
  if (text != nullptr && size > 0) {
    const std::size_t length = std::min(whole.size(), size - 1);
    std::memcpy(text, whole.data(), length);
    text[length] = '\0';
  }
  return whole.size();
}

const char* acclVersion(void) { return "ACCL " LJTRAIN_VERSION " (NCCL 2.29.7)"; }

extern "C" void ncclResetDebugInitInternal(void) { trace::reload(); }
void pncclResetDebugInit(void) { ncclResetDebugInitInternal(); }
ACCL_ALIAS(ncclResetDebugInit);

ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_created(comm);
    require_pointer(count, "count");
    *count = found->size();
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommCount);

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_created(comm);
    require_pointer(rank, "rank");
    *rank = found->rank();
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommUserRank);

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_created(comm);
    require_pointer(device, "device");
    *device = kCpuDevice;
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommCuDevice);

ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* properties) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_created(comm);
    require_pointer(properties, "properties");
    if (properties->magic != NCCL_API_MAGIC) {
      throw error(ErrorCode::kInvalidArgument,
                  "properties was not initialised: start it from NCCL_COMM_PROPERTIES_INITIALIZER");
    }
    if (properties->size < offsetof(ncclCommProperties_t, rank)) {
      throw error(ErrorCode::kInvalidArgument, "properties of {} bytes are too small",
                  properties->size);
    }
    ncclCommProperties_t whole{};
    whole.size = properties->size;
    whole.magic = properties->magic;
    whole.version = properties->version;
    whole.rank = found->rank();
    whole.nRanks = found->size();
    whole.cudaDev = kCpuDevice;
    whole.nvmlDev = kCpuDevice;
    whole.deviceApiSupport = false;
    whole.multimemSupport = false;
    whole.ginType = NCCL_GIN_TYPE_NONE;
    whole.nLsaTeams = found->size();  // see ncclTeamLsa
    whole.hostRmaSupport = true;
    whole.railedGinType = NCCL_GIN_TYPE_NONE;
    std::memcpy(properties, &whole, std::min(sizeof(whole), properties->size));
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommQueryProperties);
