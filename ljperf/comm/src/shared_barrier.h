// A barrier between the memcpy ranks: a counter in a file of the run's folder that all of them map.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "rank_driver.h"

namespace ljtrain::ljperf {

class SharedBarrier {
 public:
  explicit SharedBarrier(const ljperf_comm::Place& place) {
    std::string file = place.folder + "/memcpy.barrier";
    int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void* memory = MAP_FAILED;
    if (fd >= 0 && ::ftruncate(fd, sizeof(Counter)) == 0) {
      memory = ::mmap(nullptr, sizeof(Counter), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (fd >= 0) {
      ::close(fd);
    }
    if (memory == MAP_FAILED) {
      throw std::runtime_error("cannot map " + file);
    }
    arrived_ = static_cast<Counter*>(memory);
  }
  ~SharedBarrier() { ::munmap(arrived_, sizeof(Counter)); }
  SharedBarrier(const SharedBarrier&) = delete;
  SharedBarrier& operator=(const SharedBarrier&) = delete;

  // Spins, so that all leave within a fraction of a microsecond where each has a core.
  void wait(int ranks) {
    round_ += static_cast<std::uint64_t>(ranks);
    arrived_->fetch_add(1);
    for (unsigned spins = 1; arrived_->load() < round_; ++spins) {
      if (spins % 1024 == 0) {
        ::sched_yield();
      }
    }
  }

 private:
  using Counter = std::atomic<std::uint64_t>;
  static_assert(Counter::is_always_lock_free);

  Counter* arrived_ = nullptr;
  std::uint64_t round_ = 0;
};

}  // namespace ljtrain::ljperf
