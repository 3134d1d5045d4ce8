#include "api/estimate.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include "accl/error.h"
#include "api/comm.h"

namespace ljtrain::accl::api {
namespace {

constexpr unsigned kSimInfoMagic = 0x74685283;

// One store of a rank seen by another, there and back.
constexpr double kMeetingS = 1e-6;
// Into the shared memory and out of it.
constexpr double kCopies = 2;

double measure_copy_s_per_byte() {
  constexpr std::size_t kBytes = 8UL << 20;
  constexpr int kRounds = 3;
  const std::vector<std::byte> source(kBytes, std::byte{1});
  std::vector<std::byte> destination(kBytes);
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(destination.data(), source.data(), kBytes);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count() / kBytes);
  }
  return best;
}

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
  static const double copy_s_per_byte = measure_copy_s_per_byte();
  double seconds = 0;
  for (const Operation& operation : operations) {
    const auto bytes = static_cast<double>(bytes_of(operation, comm.size()));
    seconds += kMeetingS + bytes * copy_s_per_byte * kCopies;
  }
  return seconds;
}

}  // namespace ljtrain::accl::api
