// The operators that ncclRedOpCreatePreMulSum makes.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "accl/nccl.h"
#include "accl/types.h"

namespace ljtrain::accl::api {

struct PremulOp {
  DataType type = DataType::kFloat32;
  Scale scale;
  // Where the factor is read when the operation runs; nullptr: `scale` holds it.
  const void* late_scalar = nullptr;
};

// One communicator's operators. Slots are used again; the handle says which use of which
// communicator it belongs to.
class ReduceOps {
 public:
  ReduceOps();
  ncclRedOp_t create(const PremulOp& op);
  // Throw kInvalidArgument for a handle that was not made here, or destroyed.
  PremulOp find(ncclRedOp_t handle) const;
  void destroy(ncclRedOp_t handle);

 private:
  struct Slot {
    PremulOp op;
    std::uint32_t salt = 0;
    bool is_used = false;
  };
  const Slot& slot_of(ncclRedOp_t handle) const;
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::uint32_t next_salt_;
};

// Reads one element as a factor.
Scale read_scale(const void* scalar, DataType type);

}  // namespace ljtrain::accl::api
