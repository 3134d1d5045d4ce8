// The limit that every library has: memcpy, on every rank's core at once.
#include "memcpy_rank.h"

#include <cstring>
#include <memory>

#include "rank_driver.h"
#include "shared_barrier.h"

namespace ljtrain::ljperf {
namespace {

using ljperf_comm::Call;
using ljperf_comm::Place;

class Memcpy : public ljperf_comm::Library {
 public:
  explicit Memcpy(const Place& place) : barrier_(place), size_(place.size) {}

  // As many bytes as the operation's buffer has, from one buffer to another.
  void run(const Call& call) override {
    std::memcpy(call.recv, call.send, call.count * ljperf_comm::size_of(call.type));
    asm volatile("" : : "r"(call.recv) : "memory");  // the copy is wanted, though nobody reads it
  }
  void barrier() override { barrier_.wait(size_); }

 private:
  SharedBarrier barrier_;
  int size_;
};

}  // namespace

int serve_memcpy() {
  return ljperf_comm::drive([](const Place& place) { return std::make_unique<Memcpy>(place); });
}

}  // namespace ljtrain::ljperf
