// Times every collective of torch.distributed, whoever calls it: Python, DeepSpeed, FSDP2 or
// functional collectives.
//
// All of them reach the backend by the dispatcher's operators c10d::*. A kernel registered for
// these at the dispatch key BackendSelect, which is in every call's key set and precedes the
// backend's own kernel, times the launch and hands back a Work that times its wait. Both are booked
// to Phase::kCommunication when the training thread does them: what it spends so is the exposed
// communication; what overlaps with computing costs that thread nothing.
//
// Not seen: DDP's reducer, which waits for a future in C++ (DDP's own logging has that figure).
//
// Bound to c10d's C++ ABI, which is not stable: module.cc refuses to load under another minor
// version of PyTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ljtrain {

struct CollectiveStatistics {
  std::string name;  // the operator's, such as "allreduce_"
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  // of the largest tensor argument: the whole buffer, as nccl-tests count
  double seconds = 0;      // launching and waiting, on whichever thread
};

// Registers the timing kernels, for good; safe to call twice.
void install_communication_timing();
void set_communication_timing_enabled(bool enabled);
// The operators that have been called since the last reset.
std::vector<CollectiveStatistics> communication_statistics();
void reset_communication_statistics();

}  // namespace ljtrain
