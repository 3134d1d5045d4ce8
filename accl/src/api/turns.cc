#include "api/turns.h"

#include <thread>

namespace ljtrain::accl::api {

void Turns::wait(std::uint64_t ticket) {
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  {
    std::unique_lock lock(mutex_);
    turned_.wait(lock, [&] {
      return serving_.load(std::memory_order_seq_cst) == ticket ||
             stopped_.load(std::memory_order_seq_cst);
    });
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
}

void Turns::wake() {
  {
    const std::scoped_lock lock(mutex_);
  }  // whoever looked before the change is asleep by now
  turned_.notify_all();
}

bool Turns::wait_until_left(std::chrono::nanoseconds at_most) const {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  while (active_.load(std::memory_order_acquire) != 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace ljtrain::accl::api
