// How communicators end, rest and say how they are.
#include "accl/accl.h"
#include "api/arguments.h"
#include "api/comm.h"
#include "api/group.h"

namespace ljtrain::accl::api {
namespace {

void finalize(Comm& comm) {
  comm.drain();
  comm.add_obstacle(kFinalized);
}

ncclResult_t comm_finalize(ncclComm_t handle) {
  const std::shared_ptr<Comm> comm = Comm::find(handle);
  comm->require_ready();
  if (!is_in_group() && comm->is_blocking()) {
    finalize(*comm);
    return ncclSuccess;
  }
  return submit({.subject = comm,
                 .ordered_on = nullptr,
                 .run = [comm] { finalize(*comm); },
                 .undo = [](const Failure&) {},
                 .is_closing = true});
}

void destroy(const std::shared_ptr<Comm>& comm) {
  comm->drain();
  comm->drain_background();
  trace::info(trace::kInit, comm->rank_for_log(), "comm {} - Destroy COMPLETE",
              static_cast<const void*>(comm.get()));
  comm->forget();
}

ncclResult_t comm_destroy(ncclComm_t handle) {
  if (handle == nullptr) {
    return ncclSuccess;
  }
  const std::shared_ptr<Comm> comm = Comm::find(handle);
  if (!is_in_group()) {
    destroy(comm);
    return ncclSuccess;
  }
  return submit({.subject = comm,
                 .ordered_on = nullptr,
                 .run = [comm] { destroy(comm); },
                 .undo = [](const Failure&) {},
                 .is_closing = true});
}

ncclResult_t comm_abort(ncclComm_t handle) {
  if (handle == nullptr) {
    return ncclSuccess;
  }
  const std::shared_ptr<Comm> comm = Comm::find(handle);
  trace::info(trace::kInit, comm->rank_for_log(), "comm {} - Abort",
              static_cast<const void*>(comm.get()));
  comm->stop(kAborted, "by ncclCommAbort");
  comm->forget();
  return ncclSuccess;
}

ncclResult_t comm_revoke(ncclComm_t handle, int flags) {
  const std::shared_ptr<Comm> comm = Comm::find_created(handle);
  require_flags(static_cast<unsigned>(flags), NCCL_REVOKE_DEFAULT, "revokeFlags");
  if ((comm->obstacles() & kRevoked) != 0) {
    throw error(ErrorCode::kInvalidArgument, "the communicator has been revoked already");
  }
  comm->stop(kRevoked, "by ncclCommRevoke");
  return ncclSuccess;
}

}  // namespace
}  // namespace ljtrain::accl::api

using namespace ljtrain::accl;
using namespace ljtrain::accl::api;

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  return guarded([&] { return comm_finalize(comm); });
}
ACCL_ALIAS(ncclCommFinalize);

ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  return guarded([&] { return comm_destroy(comm); });
}
ACCL_ALIAS(ncclCommDestroy);

ncclResult_t pncclCommAbort(ncclComm_t comm) {
  return guarded([&] { return comm_abort(comm); });
}
ACCL_ALIAS(ncclCommAbort);

ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  return guarded([&] { return comm_revoke(comm, revokeFlags); });
}
ACCL_ALIAS(ncclCommRevoke);

ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_ready(comm);
    if (flags != NCCL_SUSPEND_MEM) {
      throw error(ErrorCode::kInvalidArgument, "flags is {:#x}: only NCCL_SUSPEND_MEM is known",
                  flags);
    }
    found->drain();
    found->add_obstacle(kSuspended);
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommSuspend);

ncclResult_t pncclCommResume(ncclComm_t comm) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_created(comm);
    if ((found->obstacles() & kSuspended) == 0) {
      throw error(ErrorCode::kInvalidUsage, "the communicator is not suspended");
    }
    found->remove_obstacle(kSuspended);
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommResume);

ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_created(comm);
    require_pointer(value, "value");
    switch (static_cast<int>(stat)) {
      case ncclStatGpuMemSuspended:
        *value = (found->obstacles() & kSuspended) != 0 ? 1 : 0;
        break;
      case ncclStatGpuMemSuspend:
      case ncclStatGpuMemPersist:
      case ncclStatGpuMemTotal:
        *value = 0;  // these count GPU memory, and there is none
        break;
      default:
        throw error(ErrorCode::kInvalidArgument, "stat {} is none of ncclCommMemStat_t",
                    static_cast<int>(stat));
    }
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommMemStats);

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find(comm);
    require_pointer(asyncError, "asyncError");
    *asyncError = found->state();
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclCommGetAsyncError);

ncclResult_t acclSetTimeout(double seconds) {
  return guarded([&] {
    // Ten years: far enough, and far from the end of a clock.
    constexpr double kMost = 10.0 * 365 * 24 * 3600;
    if (!(seconds > 0 && seconds <= kMost)) {
      throw error(ErrorCode::kInvalidArgument, "seconds is {}: it must be more than 0, at most {}",
                  seconds, kMost);
    }
    set_default_timeout(
        std::chrono::round<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds)));
    return ncclSuccess;
  });
}
