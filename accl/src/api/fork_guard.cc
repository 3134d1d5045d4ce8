#include "api/fork_guard.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace ljtrain::accl::api {
namespace {

// std::mutex is trivially destructible here, so these stay usable while the process ends.
std::array<std::mutex, static_cast<std::size_t>(GlobalMutex::kCount)> mutexes;
std::atomic<std::uint32_t> generation{1};

void before_fork() {
  for (std::mutex& mutex : mutexes) {
    mutex.lock();
  }
}

void after_fork_in_parent() {
  for (std::mutex& mutex : mutexes) {
    mutex.unlock();
  }
}

void after_fork_in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  after_fork_in_parent();
}

[[maybe_unused]] const int registered =
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

}  // namespace

std::uint32_t fork_generation() { return generation.load(std::memory_order_relaxed); }

std::mutex& global_mutex(GlobalMutex which) { return mutexes[static_cast<std::size_t>(which)]; }

}  // namespace ljtrain::accl::api
