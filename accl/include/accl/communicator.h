// A communicator: a fixed set of ranks (threads or processes of one host) that run operations
// together. This is the C++ face of ACCL. The NCCL ABI (accl/src/api) and the PyTorch backend
// (python/ljtrain/csrc) stand on it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "accl/error.h"
#include "accl/types.h"

namespace ljtrain::accl {

// Names one creation of a communicator. Has NCCL's size, so that it passes through ncclUniqueId.
struct UniqueId {
  std::array<char, 128> bytes{};
};
// Random; nothing is opened or listened on. Throws kSystem.
UniqueId new_unique_id();

struct CommunicatorOptions {
  // For the creation, and the default of every operation. ACCL_TIMEOUT (seconds) is the default of
  // this default (1800).
  std::optional<std::chrono::nanoseconds> timeout = std::nullopt;
  std::string name;  // shown in messages; empty: a part of the id
  // Setting it to true ends a creation under way with kAborted, within a second.
  std::shared_ptr<std::atomic<bool>> cancelled = nullptr;
};

namespace internal {
class CommunicatorState;
}

// A message under way. Dropping the handle does not cancel it.
class PendingMessage {
 public:
  virtual ~PendingMessage() = default;
  virtual bool is_done() const = 0;
  // Of a finished receive: the rank it came from.
  virtual int source() const = 0;
  // Set when it failed (a deadline, a dead peer, sizes that disagree, abort).
  virtual std::optional<Error> failure() const = 0;
};
using MessageHandle = std::shared_ptr<PendingMessage>;

class Communicator {
 public:
  // Blocks until all `size` ranks have called it with the same id, or throws: kTimeout names the
  // ranks that did not come, kInvalidArgument says what disagrees. Ranks may be threads of one
  // process.
  static std::shared_ptr<Communicator> create(const UniqueId& id, int rank, int size,
                                              const CommunicatorOptions& options = {});
  // Tells the peers that this rank has left in order. Waits for nothing and leaves nothing behind.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;
  int size() const;
  const std::string& name() const;

  // Runs a collective to its end on the calling thread: when it returns, the result is there and
  // the buffers are the caller's again. One at a time: a second thread waits for the first. Throws
  // Error; after one of kInvalidUsage (ranks disagree), kRemote, kTimeout or kAborted the
  // communicator is broken on every rank and each further call throws the same sentence. Errors of
  // the arguments alone (kInvalidArgument: null pointer, count that overflows, bad root) leave it
  // whole.
  void run(const Collective& collective);

  // Messages are independent of collectives: neither waits for the other. post() starts one;
  // somebody must drive progress: wait(), or progress() in a loop. A send is done when its receiver
  // has taken it. Thread-safe.
  MessageHandle post(const Message& message);
  // Moves all messages as far as possible without blocking; true if anything moved.
  bool progress();
  // Drives progress until all are done; throws the first failure. A receive or send that times out
  // is cancelled and its error names the peer and what the peer does; the communicator stays whole.
  void wait(std::span<const MessageHandle> messages);
  // Drives progress until something moved, `interrupt_wait()` is called, or the time has passed.
  // For a progress thread.
  void wait_for_progress(std::chrono::nanoseconds at_most);
  void interrupt_wait() noexcept;
  // Messages that are not done yet.
  std::size_t messages_pending() const;

  // Ends every operation of this rank within a second and breaks the communicator for its peers,
  // who get `reason`. Any thread, any time, more than once.
  void abort(const std::string& reason) noexcept;
  // What broke the communicator, if anything did: also looks whether every peer is alive (pidfd).
  std::optional<Error> async_error();

  // Memory that peers can map, zero-filled. Collectives whose buffers all lie in such memory move
  // data once instead of twice. Outside of any communicator; freed by the same process. Throws
  // kSystem when there is not enough.
  static void* allocate(std::size_t bytes);
  // False when `memory` did not come from allocate().
  static bool deallocate(void* memory) noexcept;
  // True when [memory, memory + bytes) lies in memory from allocate().
  static bool is_shared(const void* memory, std::size_t bytes) noexcept;

  // "all_reduce #17 of 1024 float32, sum": for a flight recorder; empty when idle.
  std::string current_operation() const;
  // Lines that say what topology was found and which algorithm serves which size, and why (ljperf
  // comm --explain).
  std::string explain(OperationKind kind, DataType type, std::size_t bytes) const;

 private:
  explicit Communicator(std::unique_ptr<internal::CommunicatorState> state);
  std::unique_ptr<internal::CommunicatorState> state_;
};

}  // namespace ljtrain::accl
