#include "tuner/machine.h"

#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "reduction/reduction.h"

namespace ljtrain::accl::tuner {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The best of several runs: what the machine can do, not what else it is doing.
template <typename Run>
double best_of(int runs, Run run) {
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    run();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

// Half a round trip between two threads that `pause` while they wait. Ends early on a machine that
// is busy.
template <typename Pause>
double half_round_trip(int rounds, Pause pause) {
  std::atomic<int> turn{0};
  std::atomic<bool> give_up{false};
  std::thread partner([&] {
    for (int i = 0; i < rounds && !give_up.load(std::memory_order_relaxed); ++i) {
      while (turn.load(std::memory_order_acquire) != 2 * i + 1 &&
             !give_up.load(std::memory_order_relaxed)) {
        pause();
      }
      turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  const auto start = Clock::now();
  constexpr double kLongest = 0.005;
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    const auto round = Clock::now();
    turn.store(2 * i + 1, std::memory_order_release);
    while (turn.load(std::memory_order_acquire) != 2 * i + 2) {
      pause();
    }
    best = std::min(best, seconds_since(round));
    if (seconds_since(start) > kLongest) {
      break;
    }
  }
  give_up.store(true);
  partner.join();
  return best / 2;
}

Machine measure() {
  Machine result{};
  constexpr std::size_t kCached = 64 << 10;
  constexpr std::size_t kLarge = 8 << 20;
  std::vector<std::byte> from(kLarge, std::byte{1});
  std::vector<std::byte> to(kLarge, std::byte{2});
  result.copy_s_per_byte =
      best_of(20, [&] { reduction::copy(to.data(), from.data(), kCached, false); }) / kCached;
  result.memory_copy_s_per_byte =
      best_of(3, [&] { reduction::copy(to.data(), from.data(), kLarge, true); }) / kLarge;
  std::vector<float> numbers(kCached / sizeof(float), 1.0F);
  const void* sources[] = {numbers.data(), from.data()};
  std::ranges::fill(from, std::byte{0});
  reduction::Request sum;
  sum.destination = to.data();
  sum.sources = sources;
  sum.count = numbers.size();
  result.reduce_s_per_byte = best_of(20, [&] { reduction::reduce(sum); }) / kCached;
  const iovec local{to.data(), 1 << 20};
  const iovec remote{from.data(), 1 << 20};
  const double read = best_of(3, [&] {
    if (::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) != 1 << 20) {
      result.process_read_s_per_byte = -1;
    }
  });
  result.process_read_s_per_byte = result.process_read_s_per_byte < 0 ? 0 : read / (1 << 20);
  const double yielding = half_round_trip(200, [] { ::sched_yield(); });
  result.switch_s = std::max(yielding, 1e-6);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof(cores), &cores);
  result.hand_over_s = CPU_COUNT(&cores) > 1 ? half_round_trip(500, [] {}) : result.switch_s;
  return result;
}

}  // namespace

const Machine& machine() {
  static const Machine measured = measure();
  return measured;
}

}  // namespace ljtrain::accl::tuner
