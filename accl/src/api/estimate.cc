#include "api/estimate.h"

#include "accl/error.h"
#include "api/comm.h"
#include "tuner/machine.h"

namespace ljtrain::accl::api {
namespace {

constexpr unsigned kSimInfoMagic = 0x74685283;

// Every rank arrives, and every rank sees that the others have.
constexpr double kHandOvers = 2;
// Into the shared memory and out of it.
constexpr double kCopies = 2;

}  // namespace

void require_sim_info(const ncclSimInfo_t* info) {
  if (info == nullptr) {
    throw error(ErrorCode::kInvalidArgument, "simInfo is NULL");
  }
  if (info->magic != kSimInfoMagic || info->size < sizeof(ncclSimInfo_t)) {
    throw error(ErrorCode::kInvalidArgument,
                "simInfo was not initialised: start it from NCCL_SIM_INFO_INITIALIZER");
  }
}

double estimate_s(const Comm& comm, std::span<const Operation> operations) {
  const tuner::Machine& machine = tuner::machine();
  double seconds = 0;
  for (const Operation& operation : operations) {
    const auto bytes = static_cast<double>(bytes_of(operation, comm.size()));
    seconds += kHandOvers * machine.hand_over_s + bytes * machine.memory_copy_s_per_byte * kCopies;
  }
  return seconds;
}

}  // namespace ljtrain::accl::api
