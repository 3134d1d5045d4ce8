// How the ranks of a communicator find each other on one host: over a Unix socket in the abstract
// namespace, whose name follows from the unique id. Whichever rank binds it first coordinates: it
// collects a hello from every rank, makes the shared segment, and passes it on. Nothing lies in the
// file system, so nothing can be left behind. (TCP between hosts will be a second way to exchange
// the same hellos.)
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "accl/communicator.h"
#include "communicator/waiting.h"
#include "transport/shared_memory/segment.h"

namespace ljtrain::accl::bootstrap {

// What a rank tells the coordinator.
struct Hello {
  std::uint64_t magic;
  std::uint32_t layout_version;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t pid;
  std::uint64_t process_start_time;
  std::uint64_t pid_namespace;  // inode of /proc/self/ns/pid
  std::int64_t time_left_ns;
  std::uint32_t deterministic;
  std::uint32_t allowed_algorithms[kOperationKinds];
  std::uint32_t heavy_barrier;  // register_for_heavy_barrier()
  cpu_set_t cores;
};

// Chooses the tuning from all hellos, by rank. Called on the coordinator only.
using Tune = std::function<shared_memory::Tuning(const std::vector<Hello>&)>;
// How large the stages and channels are, for that tuning.
struct Sizes {
  std::size_t stage_bytes;
  std::size_t channel_bytes;
};
using Measure = std::function<Sizes(const shared_memory::Tuning&)>;

// Blocks until all ranks are there. Throws Error: kTimeout names who is missing; kInvalidArgument
// says what disagrees; kRemote names who died; kAborted after `cancelled`.
shared_memory::Segment join(const UniqueId& id, Hello hello, Clock::time_point deadline,
                            const std::atomic<bool>* cancelled, const Tune& tune,
                            const Measure& measure);

// "0-3,5": for sentences that name ranks.
std::string list_of(const std::vector<int>& ranks);

}  // namespace ljtrain::accl::bootstrap
