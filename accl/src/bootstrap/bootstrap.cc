#include "bootstrap/bootstrap.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "bootstrap/unix_socket.h"
#include "communicator/peer_process.h"

namespace ljtrain::accl {

UniqueId new_unique_id() {
  UniqueId id;
  if (::getrandom(id.bytes.data(), id.bytes.size(), 0) != static_cast<ssize_t>(id.bytes.size())) {
    throw error(ErrorCode::kSystem, "getrandom: {}", std::strerror(errno));
  }
  return id;
}

namespace bootstrap {
namespace {

using shared_memory::RankControl;
using shared_memory::RankState;
using shared_memory::Segment;

constexpr std::uint64_t kMagic = 0x6f6c6c6548434341ULL;  // "ACCHello"
constexpr std::chrono::milliseconds kLookAround{100};
// The coordinator's answer at the deadline (who is missing) needs a moment to arrive.
constexpr std::chrono::seconds kGrace{2};

// The coordinator's answer; with it comes the segment's memory, if all is well.
struct Answer {
  ErrorCode code;
  std::int32_t failed;
  std::int32_t ranks_count;
  std::int32_t ranks[64];
  char text[1024];
};

// FNV-1a over the whole id, twice with different seeds: 128 bits.
std::string socket_name(const UniqueId& id) {
  std::uint64_t halves[2] = {0xcbf29ce484222325ULL, 0x84222325cbf29ce4ULL};
  for (std::uint64_t& half : halves) {
    for (const char byte : id.bytes) {
      half = (half ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
    }
  }
  return fmt::format("accl-{:016x}{:016x}", halves[0], halves[1]);
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

void throw_if_cancelled(const std::atomic<bool>* cancelled) {
  if (cancelled != nullptr && cancelled->load()) {
    throw Error(ErrorCode::kAborted, "the creation of the communicator was aborted");
  }
}

int poll_for(Clock::time_point deadline, std::span<pollfd> requests) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  const auto slice = std::clamp(left, std::chrono::milliseconds(0), kLookAround);
  return ::poll(requests.data(), requests.size(), static_cast<int>(slice.count()));
}

class Coordinator {
 public:
  Coordinator(base::UniqueFd listener, Hello own, Clock::time_point deadline,
              const std::atomic<bool>* cancelled)
      : listener_(std::move(listener)),
        own_rank_(own.rank),
        deadline_(deadline),
        cancelled_(cancelled),
        hellos_(static_cast<std::size_t>(own.size)),
        sockets_(static_cast<std::size_t>(own.size)) {
    hellos_[static_cast<std::size_t>(own.rank)] = own;
  }

  Segment run(const Tune& tune, const Measure& measure) {
    try {
      while (!is_complete()) {
        throw_if_cancelled(cancelled_);
        if (Clock::now() >= deadline_) {
          throw missing();
        }
        collect();
      }
      return make_segment(tune, measure);
    } catch (const Error& failure) {
      tell_everybody(failure);
      throw;
    }
  }

 private:
  bool is_complete() const {
    return std::ranges::all_of(hellos_, [](const auto& hello) { return hello.has_value(); });
  }

  Error missing() const {
    std::vector<int> absent;
    for (std::size_t rank = 0; rank < hellos_.size(); ++rank) {
      if (!hellos_[rank]) {
        absent.push_back(static_cast<int>(rank));
      }
    }
    return {ErrorCode::kTimeout,
            fmt::format("the communicator was not made in time: {} of {} ranks came, missing: {}",
                        hellos_.size() - absent.size(), hellos_.size(), list_of(absent)),
            absent};
  }

  // One round: new connections, their hellos, and whether those that came are still there.
  void collect() {
    std::vector<pollfd> requests{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const auto& guest : guests_) {
      requests.push_back({.fd = guest.get(), .events = POLLIN, .revents = 0});
    }
    const std::size_t known = requests.size();
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < sockets_.size(); ++rank) {
      if (sockets_[rank]) {
        requests.push_back({.fd = sockets_[rank].get(), .events = POLLIN, .revents = 0});
        ranks.push_back(static_cast<int>(rank));
      }
    }
    if (poll_for(deadline_, requests) <= 0) {
      return;
    }
    for (std::size_t i = known; i < requests.size(); ++i) {
      if (requests[i].revents != 0) {
        const int rank = ranks[i - known];
        throw Error(ErrorCode::kRemote,
                    fmt::format("rank {} (pid {}) died while the communicator was made", rank,
                                hellos_[static_cast<std::size_t>(rank)]->pid),
                    {rank});
      }
    }
    std::vector<base::UniqueFd> silent;
    for (std::size_t i = 1; i < known; ++i) {
      if (requests[i].revents != 0) {
        welcome(std::move(guests_[i - 1]));
      } else {
        silent.push_back(std::move(guests_[i - 1]));
      }
    }
    guests_ = std::move(silent);
    if (requests[0].revents != 0) {
      base::UniqueFd guest(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!guest && (errno == EMFILE || errno == ENFILE)) {
        throw error(ErrorCode::kSystem, "rank {} has no descriptor left for its peers (ulimit -n)",
                    own_rank_);
      }
      if (guest && is_same_user(guest.get())) {
        guests_.push_back(std::move(guest));
      }
    }
  }

  void welcome(base::UniqueFd guest) {
    Hello hello{};
    const Packet packet = receive_packet(guest.get(), std::as_writable_bytes(std::span(&hello, 1)));
    if (packet.bytes == 0) {
      return;  // connected and gone before it said anything
    }
    if (packet.bytes != sizeof(hello) || hello.magic != kMagic ||
        hello.layout_version != shared_memory::kLayoutVersion || hello.rank < 0 ||
        hello.rank >= hello.size) {
      throw error(ErrorCode::kInvalidArgument,
                  "a rank loaded another version of ACCL: all ranks must load the same");
    }
    const auto size = static_cast<std::int32_t>(hellos_.size());
    const auto at = static_cast<std::size_t>(hello.rank);
    // Kept first, so that it too gets the answer.
    if (hello.size != size) {
      rejected_.push_back(std::move(guest));
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("ranks disagree on their number: rank {} says {}, rank {} says {}",
                              own_rank_, size, hello.rank, hello.size),
                  {own_rank_, hello.rank});
    }
    if (hellos_[at]) {
      rejected_.push_back(std::move(guest));
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("two callers say they are rank {}: pid {} and pid {}", hello.rank,
                              hellos_[at]->pid, hello.pid),
                  {hello.rank});
    }
    deadline_ = std::min(deadline_, Clock::now() + std::chrono::nanoseconds(hello.time_left_ns));
    hellos_[at] = hello;
    sockets_[at] = std::move(guest);
  }

  Segment make_segment(const Tune& tune, const Measure& measure) {
    std::vector<Hello> hellos;
    for (const auto& hello : hellos_) {
      hellos.push_back(*hello);
    }
    const shared_memory::Tuning tuning = tune(hellos);
    const Sizes sizes = measure(tuning);
    Segment segment =
        Segment::create(static_cast<int>(hellos.size()), sizes.stage_bytes, sizes.channel_bytes);
    segment.header().tuning = tuning;
    // A pid of another namespace means nothing to a peer: then all are watched by deadlines only.
    const bool comparable = std::ranges::all_of(
        hellos, [&](const Hello& hello) { return hello.pid_namespace == hellos[0].pid_namespace; });
    for (const Hello& hello : hellos) {
      RankControl& control = segment.control(hello.rank);
      control.pid = comparable ? hello.pid : 0;
      control.process_start_time = hello.process_start_time;
      control.state.store(RankState::kJoined, std::memory_order_release);
    }
    Answer answer{};
    for (const auto& socket : sockets_) {
      // One that died just now is noticed by its pid, like any later death.
      if (socket) {
        send_packet(socket.get(), bytes_of(answer), segment.memory_fd());
      }
    }
    return segment;
  }

  void tell_everybody(const Error& failure) {
    Answer answer{};
    answer.failed = 1;
    answer.code = failure.code() == ErrorCode::kAborted ? ErrorCode::kRemote : failure.code();
    const std::string text =
        failure.code() == ErrorCode::kAborted
            ? fmt::format("rank {} aborted the creation of the communicator", own_rank_)
            : failure.what();
    std::memcpy(answer.text, text.data(), std::min(text.size(), sizeof(answer.text) - 1));
    const auto count = std::min(failure.ranks().size(), std::size(answer.ranks));
    std::copy_n(failure.ranks().begin(), count, answer.ranks);
    answer.ranks_count = static_cast<std::int32_t>(count);
    for (const auto* sockets : {&sockets_, &rejected_, &guests_}) {
      for (const auto& socket : *sockets) {
        if (socket) {
          send_packet(socket.get(), bytes_of(answer));
        }
      }
    }
  }

  base::UniqueFd listener_;
  int own_rank_;
  Clock::time_point deadline_;
  const std::atomic<bool>* cancelled_;
  std::vector<std::optional<Hello>> hellos_;
  std::vector<base::UniqueFd> sockets_;  // by rank; none for the coordinator itself
  std::vector<base::UniqueFd> guests_;   // have not said who they are yet
  std::vector<base::UniqueFd> rejected_;
};

Segment take_part(const base::UniqueFd& socket, Clock::time_point deadline,
                  const std::atomic<bool>* cancelled) {
  for (;;) {
    throw_if_cancelled(cancelled);
    pollfd request{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (poll_for(deadline + kGrace, {&request, 1}) > 0) {
      break;
    }
    if (Clock::now() >= deadline + kGrace) {
      throw Error(ErrorCode::kTimeout,
                  "the communicator was not made in time: the coordinating rank does not answer "
                  "(stopped?)");
    }
  }
  Answer answer{};
  Packet packet = receive_packet(socket.get(), std::as_writable_bytes(std::span(&answer, 1)));
  if (packet.bytes == 0) {
    throw Error(
        ErrorCode::kRemote,
        "the rank that coordinated the creation of the communicator ended without an answer: it "
        "died, or found an error that it reports itself");
  }
  if (packet.bytes != sizeof(answer)) {
    throw Error(ErrorCode::kInvalidArgument,
                "a rank loaded another version of ACCL: all ranks must load the same");
  }
  if (answer.failed != 0) {
    throw Error(answer.code, answer.text,
                std::vector<int>(answer.ranks, answer.ranks + answer.ranks_count));
  }
  return Segment::map(std::move(packet.descriptor));
}

}  // namespace

std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ",";
    text += last == i ? std::to_string(ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

Segment join(const UniqueId& id, Hello hello, Clock::time_point deadline,
             const std::atomic<bool>* cancelled, const Tune& tune, const Measure& measure) {
  if (std::ranges::all_of(id.bytes, [](char byte) { return byte == 0; })) {
    throw Error(ErrorCode::kInvalidArgument,
                "the unique id is all zero: pass the one that ncclGetUniqueId made on one rank");
  }
  hello.magic = kMagic;
  hello.layout_version = shared_memory::kLayoutVersion;
  hello.pid = ::getpid();
  hello.process_start_time = process_start_time(hello.pid);
  struct stat facts{};
  hello.pid_namespace = ::stat("/proc/self/ns/pid", &facts) == 0 ? facts.st_ino : 0;
  CPU_ZERO(&hello.cores);
  ::sched_getaffinity(0, sizeof(hello.cores), &hello.cores);
  const std::string name = socket_name(id);
  for (;;) {
    throw_if_cancelled(cancelled);
    if (auto listener = listen_at(name)) {
      return Coordinator(std::move(*listener), hello, deadline, cancelled).run(tune, measure);
    }
    // Taken: somebody coordinates. It may not listen yet, or have just finished a round that this
    // rank came too late for.
    if (const auto socket = connect_to(name)) {
      hello.time_left_ns = std::chrono::nanoseconds(deadline - Clock::now()).count();
      if (is_same_user(socket->get()) && send_packet(socket->get(), bytes_of(hello))) {
        return take_part(*socket, deadline, cancelled);
      }
    }
    if (Clock::now() >= deadline) {
      throw Error(ErrorCode::kTimeout,
                  "the communicator was not made in time: no rank could coordinate");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace bootstrap
}  // namespace ljtrain::accl
