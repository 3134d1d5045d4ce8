// The order of a communicator's operations. Each takes a ticket when it is issued and runs when its
// turn has come, on whatever thread: the caller's, a stream's, the communicator's own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace ljtrain::accl::api {

class Turns {
 public:
  std::uint64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Until the turn has come; false: the turns were stopped. True obliges to finish().
  bool enter(std::uint64_t ticket) {
    active_.fetch_add(1, std::memory_order_seq_cst);  // before the look at stopped_: see stop()
    if (serving_.load(std::memory_order_acquire) != ticket) {
      wait(ticket);
    }
    if (stopped_.load(std::memory_order_seq_cst)) [[unlikely]] {
      leave();
      return false;
    }
    return true;
  }
  void finish() {
    serving_.fetch_add(1, std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_seq_cst) != 0) [[unlikely]] {
      wake();
    }
    leave();
  }

  // Lets everybody who waits go, now and later, with false.
  void stop() {
    stopped_.store(true, std::memory_order_seq_cst);
    wake();
  }
  bool is_stopped() const { return stopped_.load(std::memory_order_relaxed); }
  // After stop(): until whoever had the turn has left it, `at_most` that long. Tells whether all
  // have.
  bool wait_until_left(std::chrono::nanoseconds at_most) const;

 private:
  void wait(std::uint64_t ticket);
  void wake();
  void leave() { active_.fetch_sub(1, std::memory_order_release); }

  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> serving_{0};
  std::atomic<std::uint32_t> waiters_{0};
  std::atomic<std::uint32_t> active_{0};
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::condition_variable turned_;
};

}  // namespace ljtrain::accl::api
