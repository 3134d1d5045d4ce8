// Times collectives of the C++ core: ranks as processes pinned one a core. For tuning by hand;
// comparisons with other libraries are `ljperf comm`.
//   collectives_bench OPERATION RANKS BYTES[,BYTES...] [registered] [in_place]
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "accl/communicator.h"

namespace {

using namespace ljtrain::accl;
using Clock = std::chrono::steady_clock;

void pin(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  ::sched_setaffinity(0, sizeof(cores), &cores);
}

void run_rank(const UniqueId& id, int rank, int ranks, OperationKind kind,
              const std::vector<std::size_t>& sizes, bool registered, bool in_place) {
  auto communicator = Communicator::create(id, rank, ranks);
  pin(rank % static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  for (const std::size_t bytes : sizes) {
    const std::size_t room = bytes + 64;
    std::vector<std::byte> plain_send(registered ? 0 : room);
    std::vector<std::byte> plain_recv(registered ? 0 : room);
    auto* send = reinterpret_cast<float*>(plain_send.data());
    auto* recv = reinterpret_cast<float*>(plain_recv.data());
    if (registered) {
      send = static_cast<float*>(Communicator::allocate(room));
      recv = static_cast<float*>(Communicator::allocate(room));
    }
    std::memset(send, 0, room);
    std::memset(recv, 0, room);
    Collective call;
    call.kind = kind;
    call.type = DataType::kFloat32;
    const bool shared_out = kind == OperationKind::kAllGather ||
                            kind == OperationKind::kReduceScatter ||
                            kind == OperationKind::kAllToAll;
    call.count = bytes / sizeof(float) / (shared_out ? static_cast<std::size_t>(ranks) : 1);
    call.send = send;
    call.recv = recv;
    if (in_place) {
      call.send = kind == OperationKind::kAllGather
                      ? recv + call.count * static_cast<std::size_t>(rank)
                      : recv;
    }
    std::vector<double> times;
    const int blocks = 15;
    int iterations = 1;
    for (int block = 0; block < blocks + 2; ++block) {
      communicator->run({});
      const auto start = Clock::now();
      for (int i = 0; i < iterations; ++i) {
        communicator->run(call);
      }
      const double seconds =
          std::chrono::duration<double>(Clock::now() - start).count() / iterations;
      if (block < 2) {
        float wanted = static_cast<float>(std::clamp(0.01 / seconds, 1.0, 10'000.0));
        Collective agree;
        agree.kind = OperationKind::kBroadcast;
        agree.type = DataType::kFloat32;
        agree.send = agree.recv = &wanted;
        agree.count = 1;
        communicator->run(agree);
        iterations = static_cast<int>(wanted);
      } else {
        times.push_back(seconds);
      }
    }
    std::ranges::sort(times);
    if (rank == 0) {
      const double median = times[times.size() / 2];
      fmt::print("{:>12} B  {:>10.2f} us  ({:.2f} .. {:.2f})  algbw {:.2f} GB/s\n", bytes,
                 median * 1e6, times.front() * 1e6, times.back() * 1e6,
                 static_cast<double>(bytes) / median / 1e9);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(
        stderr,
        "usage: collectives_bench OPERATION RANKS BYTES[,BYTES...] [registered] [in_place]\n");
    return 2;
  }
  OperationKind kind = OperationKind::kAllReduce;
  for (int i = 0; i < kOperationKinds; ++i) {
    if (name_of(static_cast<OperationKind>(i)) == argv[1]) {
      kind = static_cast<OperationKind>(i);
    }
  }
  const int ranks = static_cast<int>(std::strtol(argv[2], nullptr, 10));
  std::vector<std::size_t> sizes;
  for (char* at = std::strtok(argv[3], ","); at != nullptr; at = std::strtok(nullptr, ",")) {
    sizes.push_back(std::strtoull(at, nullptr, 10));
  }
  bool registered = false;
  bool in_place = false;
  for (int i = 4; i < argc; ++i) {
    registered = registered || std::string_view(argv[i]) == "registered";
    in_place = in_place || std::string_view(argv[i]) == "in_place";
  }
  const UniqueId id = new_unique_id();
  for (int rank = 0; rank < ranks; ++rank) {
    if (::fork() == 0) {
      try {
        run_rank(id, rank, ranks, kind, sizes, registered, in_place);
      } catch (const std::exception& failure) {
        fmt::print(stderr, "rank {}: {}\n", rank, failure.what());
        ::_exit(1);
      }
      std::fflush(stdout);
      ::_exit(0);
    }
  }
  int failed = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    ::wait(&status);
    failed |= status;
  }
  return failed == 0 ? 0 : 1;
}
