// The rank's side of `ljperf comm`: one process per rank, idle in read() until the orchestrator
// sends a line. Used by every driver, also by those compiled at run time against a library that is
// found on the machine, so: C++17, nothing but the standard library and Linux.
//
//   orchestrator -> rank                                             rank -> orchestrator
//   -                                                                hello GROUP RANK PID, then:
//   ready | skip WHY | error WHY time OP DTYPE COUNT IN_PLACE REGISTERED WARMUP ITERATIONS ok
//   SECONDS        (of all iterations) check OP DTYPE COUNT IN_PLACE REGISTERED ok WRONG (elements)
//   quit                                                             -
//
// COUNT is in elements, of one rank where the ranks have shares of their own. In the environment:
// LJPERF_COMM_SOCKET (abstract socket), LJPERF_COMM_GROUP, LJPERF_COMM_RANK, LJPERF_COMM_SIZE,
// LJPERF_COMM_FOLDER, LJPERF_COMM_CPUS ("0,2;1,3", by rank).
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "operations.h"

namespace ljperf_comm {

// One operation as one rank calls it. Out of place send and recv do not overlap; in place they
// overlap as in NCCL.
struct Call {
  Op op = Op::kAllReduce;
  Type type = Type::kFloat32;
  std::size_t count = 0;
  bool in_place = false;
  bool registered = false;
  void* send = nullptr;
  void* recv = nullptr;
};

// What a driver has to bring. Every method throws std::exception with a sentence when it fails.
class Library {
 public:
  virtual ~Library() = default;
  virtual void run(const Call& call) = 0;
  // All ranks leave it at about the same moment.
  virtual void barrier() = 0;
  virtual void* allocate_registered(std::size_t) {
    throw std::runtime_error("this library has no registered memory");
  }
};

struct Place {
  int rank = 0;
  int size = 1;
  std::string folder;  // of this run, the same for every rank
};

// Thrown when the library cannot be used here, which is no failure.
struct Unusable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

inline int number_in(const char* name) {
  return static_cast<int>(std::strtol(environment(name).c_str(), nullptr, 10));
}

// What one rank tells all: rank 0's `mine` arrives everywhere. For the id a library is started
// with.
inline std::string from_rank_0(const Place& place, const std::string& mine) {
  std::string file = place.folder + "/group-" + environment("LJPERF_COMM_GROUP") + ".id";
  if (place.rank == 0) {
    std::ofstream(file + ".new", std::ios::binary) << mine;
    if (std::rename((file + ".new").c_str(), file.c_str()) != 0) {
      throw std::runtime_error("cannot write " + file);
    }
    return mine;
  }
  for (int tries = 0; tries < 12000; ++tries) {  // a minute
    std::ifstream stream(file, std::ios::binary);
    if (stream) {
      return std::string(std::istreambuf_iterator<char>(stream), {});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  throw std::runtime_error("rank 0 did not start within a minute");
}

namespace detail {

// Page-aligned memory that only grows, touched so that no page fault falls into a measurement.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (!registered_ && data_ != nullptr) {
      ::munmap(data_, bytes_);
    }
  }
  char* reserve(std::size_t bytes, Library* registering) {
    if (bytes <= bytes_) {
      return data_;
    }
    if (data_ != nullptr && !registered_) {
      ::munmap(data_, bytes_);
    }
    registered_ = registering != nullptr;
    if (registered_) {
      data_ = static_cast<char*>(registering->allocate_registered(bytes));
    } else {
      void* memory =
          ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      data_ = memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
    }
    if (data_ == nullptr) {
      throw std::runtime_error("no memory for a buffer of " + std::to_string(bytes) + " bytes");
    }
    bytes_ = bytes;
    std::memset(data_, 0, bytes);
    return data_;
  }

 private:
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool registered_ = false;
};

// Small whole numbers, so that every sum is exact in every type: which one depends on the rank and
// the position.
inline int value_at(Op op, int rank, int size, std::size_t i) {
  std::uint64_t mixed = (i + 1) * 0x9E3779B97F4A7C15ull +
                        static_cast<std::uint64_t>(rank + 1) * 0xC2B2AE3D27D4EB4Full;
  int values = reduces(op) ? std::max(2, std::min(16, 127 / size)) : 120;
  return static_cast<int>((mixed >> 40) % static_cast<unsigned>(values));
}

inline std::uint16_t half_of(int value) {  // exact for 0 <= value <= 2048
  if (value == 0) {
    return 0;
  }
  int exponent = 31 - __builtin_clz(static_cast<unsigned>(value));
  return static_cast<std::uint16_t>(((exponent + 15) << 10) | ((value << (10 - exponent)) & 0x3ff));
}

template <typename T>
void put(void* data, std::size_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * sizeof(T), &value, sizeof(T));
}

inline void store(Type type, void* data, std::size_t i, int value) {
  switch (type) {
    case Type::kInt8:
    case Type::kUint8:
      return put(data, i, static_cast<std::uint8_t>(value));
    case Type::kInt32:
      return put(data, i, static_cast<std::int32_t>(value));
    case Type::kInt64:
      return put(data, i, static_cast<std::int64_t>(value));
    case Type::kFloat16:
      return put(data, i, half_of(value));
    case Type::kBfloat16: {
      auto wide = static_cast<float>(value);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &wide, sizeof bits);
      return put(data, i, static_cast<std::uint16_t>(bits >> 16));
    }
    case Type::kFloat32:
      return put(data, i, static_cast<float>(value));
    case Type::kFloat64:
      return put(data, i, static_cast<double>(value));
  }
}

// What element i of rank's result must be; computed from the definition of the operation alone.
inline int expected(const Call& call, int rank, int size, std::size_t i) {
  auto sum = [&](std::size_t at) {
    int total = 0;
    for (int peer = 0; peer < size; ++peer) {
      total += value_at(call.op, peer, size, at);
    }
    return total;
  };
  auto own = static_cast<std::size_t>(rank) * call.count;
  switch (call.op) {
    case Op::kAllReduce:
    case Op::kReduce:
      return sum(i);
    case Op::kReduceScatter:
      return sum(own + i);
    case Op::kBroadcast:
      return value_at(call.op, kRoot, size, i);
    case Op::kScatter:
      return value_at(call.op, kRoot, size, own + i);
    case Op::kAllGather:
    case Op::kGather:
      return value_at(call.op, static_cast<int>(i / call.count), size, i % call.count);
    case Op::kAllToAll:
      return value_at(call.op, static_cast<int>(i / call.count), size, own + i % call.count);
  }
  return -1;
}

class Rank {
 public:
  Rank(int fd, Place place) : fd_(fd), place_(std::move(place)) {}

  void say(const std::string& line) {
    std::string text = line;
    std::replace(text.begin(), text.end(), '\n', ' ');
    text += '\n';
    for (std::size_t sent = 0; sent < text.size();) {
      ssize_t count = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno != EINTR) {
        ::_exit(0);  // the orchestrator is gone
      }
      sent += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
  }

  // False when the orchestrator has gone.
  bool hear(std::string& line) {
    for (;;) {
      std::size_t end = unread_.find('\n');
      if (end != std::string::npos) {
        line = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        return true;
      }
      char buffer[512];
      ssize_t count = ::read(fd_, buffer, sizeof buffer);
      if (count == 0 || (count < 0 && errno != EINTR)) {
        return false;
      }
      unread_.append(buffer, count > 0 ? static_cast<std::size_t>(count) : 0);
    }
  }

  void serve(Library& library) {
    for (std::string line; hear(line) && line != "quit";) {
      say(answer(library, line));
    }
  }

 private:
  std::string answer(Library& library, const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    std::string op;
    std::string type;
    std::size_t count = 0;
    Call call;
    words >> verb >> op >> type >> count >> call.in_place >> call.registered;
    call.op = static_cast<Op>(position(op, kOpNames, std::size(kOpNames)));
    call.type = static_cast<Type>(position(type, kTypeNames, std::size(kTypeNames)));
    call.count = count;
    point_to_buffers(library, call);
    if (verb == "time") {
      long warmup = 0;
      long iterations = 1;
      words >> warmup >> iterations;
      char text[64];
      std::snprintf(text, sizeof text, "ok %.9e", time(library, call, warmup, iterations));
      return text;
    }
    return "ok " + std::to_string(check(library, call));
  }

  template <typename Names>
  static std::size_t position(const std::string& name, const Names& names, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      if (name == names[i]) {
        return i;
      }
    }
    throw std::runtime_error("unknown word " + name);
  }

  std::size_t ranks() const { return static_cast<std::size_t>(place_.size); }
  std::size_t send_count(const Call& call) const {
    return call.count * (sends_all(call.op) ? ranks() : 1);
  }
  std::size_t recv_count(const Call& call) const {
    return call.count * (receives_all(call.op) ? ranks() : 1);
  }
  // Broadcast and scatter read the root's buffer only, reduce and gather write there only.
  bool has_result(const Call& call) const {
    return (call.op != Op::kReduce && call.op != Op::kGather) || place_.rank == kRoot;
  }

  void point_to_buffers(Library& library, Call& call) {
    Library* registering = call.registered ? &library : nullptr;
    std::size_t width = size_of(call.type);
    std::size_t send_bytes = send_count(call) * width;
    std::size_t recv_bytes = recv_count(call) * width;
    auto share = static_cast<std::size_t>(place_.rank) * call.count * width;
    Buffer& first = call.registered ? registered_send_ : send_;
    Buffer& second = call.registered ? registered_recv_ : recv_;
    if (!call.in_place) {
      call.send = first.reserve(send_bytes, registering);
      call.recv = second.reserve(recv_bytes, registering);
      return;
    }
    char* memory = second.reserve(std::max(send_bytes, recv_bytes), registering);
    bool inside_recv =
        call.op == Op::kAllGather || (call.op == Op::kGather && place_.rank == kRoot);
    bool inside_send =
        call.op == Op::kReduceScatter || (call.op == Op::kScatter && place_.rank == kRoot);
    call.send = inside_recv ? memory + share : memory;
    call.recv = inside_send ? memory + share : memory;
  }

  double time(Library& library, const Call& call, long warmup, long iterations) {
    for (long i = 0; i < warmup; ++i) {
      library.run(call);
    }
    library.barrier();
    timespec begin{};
    timespec end{};
    ::clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < iterations; ++i) {
      library.run(call);
    }
    ::clock_gettime(CLOCK_MONOTONIC, &end);
    return static_cast<double>(end.tv_sec - begin.tv_sec) +
           1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
  }

  std::size_t check(Library& library, const Call& call) {
    std::size_t width = size_of(call.type);
    std::memset(call.recv, 0xA5, recv_count(call) * width);  // so that an untouched element shows
    for (std::size_t i = 0; i < send_count(call); ++i) {
      store(call.type, call.send, i, value_at(call.op, place_.rank, place_.size, i));
    }
    library.run(call);
    auto* result = static_cast<unsigned char*>(call.recv);
    // For the tests of --check itself.
    if (environment("LJPERF_COMM_CORRUPT") ==
        environment("LJPERF_COMM_LIBRARY") + ":" + std::to_string(place_.rank)) {
      result[recv_count(call) / 2 * width] ^= 0x40;
    }
    std::size_t wrong = 0;
    for (std::size_t i = 0; has_result(call) && i < recv_count(call); ++i) {
      unsigned char want[8] = {};
      store(call.type, want, 0, expected(call, place_.rank, place_.size, i));
      wrong += std::memcmp(want, result + i * width, width) != 0 ? 1u : 0u;
    }
    library.barrier();
    // Zeros again: repeated sums in place must stay what they are.
    std::memset(call.send, 0, send_count(call) * width);
    std::memset(call.recv, 0, recv_count(call) * width);
    return wrong;
  }

  int fd_;
  Place place_;
  std::string unread_;
  Buffer send_;
  Buffer recv_;
  Buffer registered_send_;
  Buffer registered_recv_;
};

inline int connect_to_orchestrator() {
  std::string name = environment("LJPERF_COMM_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address.sun_path) {
    return -1;
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 ? fd : -1;
}

// To the cores of this rank. Here and not by the launcher, because mpirun stands between.
inline void bind_to_cores(int rank) {
  std::istringstream ranks(environment("LJPERF_COMM_CPUS"));
  std::string cpus;
  for (int i = 0; i <= rank; ++i) {
    if (!std::getline(ranks, cpus, ';')) {
      return;
    }
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  std::istringstream numbers(cpus);
  for (std::string number; std::getline(numbers, number, ',');) {
    CPU_SET(static_cast<std::size_t>(std::stoi(number)), &set);
  }
  ::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace detail

// A driver's main(): `start(place)` makes the library. `rank_variable`: where a launcher says which
// rank this is.
template <typename Start>
int drive(Start start, const char* rank_variable = "LJPERF_COMM_RANK") {
  Place place;
  place.rank = number_in(rank_variable);
  place.size = number_in("LJPERF_COMM_SIZE");
  place.folder = environment("LJPERF_COMM_FOLDER");
  int fd = detail::connect_to_orchestrator();
  if (fd < 0) {
    std::fprintf(stderr, "this program is started by `ljperf comm` only\n");
    return 2;
  }
  // Whoever started this rank watches over it (ljperf or mpirun): without it, the rank may wait for
  // its peers for ever.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  detail::bind_to_cores(place.rank);
  detail::Rank rank(fd, place);
  rank.say("hello " + environment("LJPERF_COMM_GROUP") + " " + std::to_string(place.rank) + " " +
           std::to_string(::getpid()));
  try {
    std::unique_ptr<Library> library = start(place);
    rank.say("ready");
    rank.serve(*library);
    return 0;
  } catch (const Unusable& reason) {
    rank.say(std::string("skip ") + reason.what());
  } catch (const std::exception& failure) {
    rank.say(std::string("error ") + failure.what());
  }
  // No destructors of a library in an unknown state: peers may hang in them.
  std::fflush(nullptr);
  ::_exit(1);
}

}  // namespace ljperf_comm
