// One operation of a communicator, as it waits for its turn.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "accl/communicator.h"
#include "accl/nccl.h"
#include "accl/types.h"
#include "api/registration.h"

namespace ljtrain::accl::api {

class Comm;

struct CollectiveWork {
  Collective collective;
  // The factor of kPremulSum is read here when the operation runs; nullptr: `collective.scale`
  // holds it.
  const void* late_scalar = nullptr;
};

struct MessageWork {
  Message message;
};

// A put with its signal, or a signal alone (bytes 0, window 0).
struct PutWork {
  const void* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  std::uint64_t window = 0;  // Window::id
  std::size_t offset = 0;
  int signal = 0;
  int context = 0;
};

struct WaitSignalWork {
  std::vector<ncclWaitSignalDesc_t> signals;
};

using Operation = std::variant<CollectiveWork, MessageWork, PutWork, WaitSignalWork>;

// How many bytes it moves into or out of this rank, for estimates.
std::size_t bytes_of(const Operation& operation, int ranks);

// Runs operations that were issued together: starts all messages, runs the collectives in their
// order, then waits for the messages. The caller has the turn. Throws Error.
void run(Comm& comm, std::span<const Operation> operations);

}  // namespace ljtrain::accl::api
