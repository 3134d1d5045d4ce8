// How long a group would take, for ncclGroupSimulateEnd.
#pragma once

#include <span>

#include "accl/nccl.h"
#include "api/operation.h"

namespace ljtrain::accl::api {

// Throws kInvalidArgument for NULL and for what was not initialised.
void require_sim_info(const ncclSimInfo_t* info);

// Seconds, from how fast this machine copies memory (measured once): what an operation must at
// least take, not what it will. Ranks that share a core are not counted in.
double estimate_s(const Comm& comm, std::span<const Operation> operations);

}  // namespace ljtrain::accl::api
