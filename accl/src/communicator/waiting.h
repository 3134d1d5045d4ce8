// How a rank waits for others: a short spin that adapts, then (more ranks than cores) yielding,
// then a futex; and what it watches meanwhile: the communicator being broken, its own abort, the
// deadline, peers that died.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/shared_memory/segment.h"

namespace ljtrain::accl {

using Clock = std::chrono::steady_clock;

// Sleeps while `word` holds `expected`, `at_most` that long; may return early. Works across
// processes.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds at_most);
void futex_wake_all(const std::atomic<std::uint32_t>& word);

// A sleeper announces itself and looks once more; a publisher stores and looks for sleepers. Each
// must order its store before its look. Where every rank's process can make the others do so
// (membarrier), only the sleeper pays for it: a publisher that waits for its store to be seen
// everywhere costs as much as the hand-over itself. Registers this process; false when the kernel
// refuses.
bool register_for_heavy_barrier();

// Stores `value` in one of this rank's words and wakes the peers that sleep on it. `light`:
// Tuning::light_publish.
inline void publish(shared_memory::RankControl& mine, std::atomic<std::uint32_t>& word,
                    std::uint32_t value, bool light) {
  if (light) {
    word.store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    word.exchange(value, std::memory_order_seq_cst);
  }
  if (mine.sleepers.load(std::memory_order_seq_cst) != 0) [[unlikely]] {
    futex_wake_all(word);
  }
}

// When a waiting rank gives up, and what it says then. The clock is read when a wait turns out to
// be slow: most never are.
class WaitContext {
 public:
  WaitContext(std::chrono::nanoseconds timeout, std::function<Error()> on_deadline)
      : timeout_(timeout), on_deadline_(std::move(on_deadline)) {}
  // The same at every call.
  Clock::time_point deadline() const {
    if (deadline_ == Clock::time_point()) {
      const auto now = Clock::now();
      deadline_ =
          timeout_ > Clock::time_point::max() - now ? Clock::time_point::max() : now + timeout_;
    }
    return deadline_;
  }
  Error late() const { return on_deadline_(); }

 private:
  std::chrono::nanoseconds timeout_;
  std::function<Error()> on_deadline_;
  mutable Clock::time_point deadline_;
};

class Waiting {
 public:
  Waiting(const shared_memory::Segment& segment, int rank, int ranks);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Until `word` of peer `owner` has reached `target` (modulo 2^32). Throws Error.
  void until_reached(int owner, std::atomic<std::uint32_t>& word, std::uint32_t target,
                     const WaitContext& context) {
    if (static_cast<std::int32_t>(word.load(std::memory_order_acquire) - target) >= 0) [[likely]] {
      return;
    }
    wait_slowly(owner, word, target, context);
  }

  // Until the own doorbell differs from `seen`, `deadline` passes (returns), or something is wrong
  // (throws). Read the doorbell first, then look at the channels, then wait with what was read.
  void until_rung(std::uint32_t seen, Clock::time_point deadline);
  std::uint32_t doorbell() const;
  // Rings a peer's doorbell, waking it if it sleeps.
  void ring(int peer);

  // Throws what broke the communicator, if anything did. Cheap: two loads.
  void check();
  // A sentence when the peer's process has died, or it has left or aborted the communicator;
  // nothing while it is there.
  std::optional<std::string> gone(int peer) const;
  // Throws when a peer's process has died that had not left in order. Breaks nothing: it may have
  // done its part of what others are still in.
  void check_processes();

  // Breaks the communicator for all ranks, keeps the first sentence, and wakes everybody. Returns
  // the error to throw: the one that was first.
  Error break_communicator(const Error& cause) noexcept;
  // Ends the waits of this rank (any thread).
  void abort(const std::string& reason) noexcept;

  // "rank 3 (pid 4242, stopped by a signal)".
  std::string name_peer(int peer) const;

 private:
  void wait_slowly(int owner, std::atomic<std::uint32_t>& word, std::uint32_t target,
                   const WaitContext& context);
  void look_for_losses();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ljtrain::accl
