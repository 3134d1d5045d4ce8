#include "communicator/waiting.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <mutex>
#include <thread>

#include "communicator/peer_process.h"

namespace ljtrain::accl {
namespace {

using shared_memory::RankControl;
using shared_memory::RankState;
using shared_memory::Segment;
using shared_memory::SegmentHeader;

// A sleeper looks around this often: at its own abort, at dead peers.
constexpr std::chrono::milliseconds kLookAround{50};
// Bounds of the adaptive spin. The lower one is a few hand-overs between cores; the upper one what
// a futex sleep and its wake-up cost on a virtual machine.
constexpr std::chrono::nanoseconds kShortestSpin{1'000};
constexpr std::chrono::nanoseconds kLongestSpin{60'000};
// With more ranks than cores the peer cannot run while this rank spins: let it.
constexpr int kYields = 20;
constexpr int kSpinsPerLook = 32;
constexpr int kEagerLooks = 400;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool reached(const std::atomic<std::uint32_t>& word, std::uint32_t target) {
  return static_cast<std::int32_t>(word.load(std::memory_order_acquire) - target) >= 0;
}

}  // namespace

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds at_most) {
  if (at_most <= std::chrono::nanoseconds::zero()) {
    return;
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (at_most - seconds).count()};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool register_for_heavy_barrier() {
  return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

struct Waiting::Impl {
  Impl(const Segment& memory, int own_rank, int all)
      : segment(memory),
        rank(own_rank),
        ranks(all),
        oversubscribed(memory.header().tuning.oversubscribed != 0) {}

  const Segment& segment;
  int rank;
  int ranks;
  bool oversubscribed;
  std::vector<std::shared_ptr<PeerProcess>> processes;  // none for this process's own ranks
  std::atomic<std::int64_t> spin_ns{20'000};
  std::atomic<bool> aborted{false};
  mutable std::mutex mutex;  // of abort_reason
  std::string abort_reason;

  RankControl& mine() const { return segment.control(rank); }
  SegmentHeader& header() const { return segment.header(); }
  Error stored_error() const;
};

// The first error, once its text is complete. Its writer may have been killed half-way.
Error Waiting::Impl::stored_error() const {
  SegmentHeader& facts = header();
  for (int i = 0; facts.broken.load(std::memory_order_acquire) == 1; ++i) {
    if (i == 100) {
      return {ErrorCode::kRemote, "a rank died while it reported an error"};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::vector<int> about(facts.broken_ranks, facts.broken_ranks + facts.broken_ranks_count);
  return {facts.broken_code, facts.broken_text, about};
}

Waiting::Waiting(const Segment& segment, int rank, int ranks)
    : impl_(std::make_unique<Impl>(segment, rank, ranks)) {
  const int own = ::getpid();
  for (int peer = 0; peer < ranks; ++peer) {
    const RankControl& control = segment.control(peer);
    impl_->processes.push_back(control.pid == own || control.pid == 0
                                   ? nullptr
                                   : PeerProcess::watch(control.pid, control.process_start_time));
  }
}

Waiting::~Waiting() = default;

void Waiting::check() {
  if (impl_->aborted.load(std::memory_order_acquire)) [[unlikely]] {
    const std::scoped_lock lock(impl_->mutex);
    throw Error(ErrorCode::kAborted, impl_->abort_reason);
  }
  if (impl_->header().broken.load(std::memory_order_acquire) != 0) [[unlikely]] {
    throw impl_->stored_error();
  }
}

void Waiting::wait_slowly(int owner, std::atomic<std::uint32_t>& word, std::uint32_t target,
                          const WaitContext& context) {
  // A hand-over under way takes no longer than this; a pause instruction or the clock would.
  for (int i = 0; i < kEagerLooks && !impl_->oversubscribed; ++i) {
    if (reached(word, target)) {
      return;
    }
  }
  const auto started = Clock::now();
  static_cast<void>(context.deadline());
  const std::chrono::nanoseconds budget(impl_->spin_ns.load(std::memory_order_relaxed));
  if (!impl_->oversubscribed) {
    for (;;) {
      for (int i = 0; i < kSpinsPerLook; ++i) {
        if (reached(word, target)) {
          return;
        }
        pause();
      }
      check();
      if (Clock::now() - started > budget) {
        break;
      }
    }
  } else {
    for (int i = 0; i < kYields; ++i) {
      if (reached(word, target)) {
        return;
      }
      ::sched_yield();
    }
  }

  RankControl& control = impl_->segment.control(owner);
  struct Sleeper {
    std::atomic<std::uint32_t>& sleepers;
    explicit Sleeper(std::atomic<std::uint32_t>& count) : sleepers(count) {
      sleepers.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Sleeper() { sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  };
  const Sleeper sleeper(control.sleepers);
  if (impl_->header().tuning.light_publish != 0) {
    ::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
  }
  for (auto looked = Clock::now();;) {
    const std::uint32_t seen = word.load(std::memory_order_seq_cst);
    if (static_cast<std::int32_t>(seen - target) >= 0) {
      break;
    }
    check();
    const auto now = Clock::now();
    if (now >= context.deadline()) {
      throw break_communicator(context.late());
    }
    if (now - looked >= kLookAround) {
      looked = now;
      // The order matters: a peer publishes before it leaves.
      if (const auto why = gone(owner); why && !reached(word, target)) {
        throw break_communicator(Error(ErrorCode::kRemote, *why, {owner}));
      }
      look_for_losses();
    }
    futex_wait(word, seen,
               std::min<std::chrono::nanoseconds>(kLookAround, context.deadline() - now));
  }
  // Would a longer spin have saved the sleep? Then spin longer next time; else spin less.
  const auto waited = Clock::now() - started;
  const auto next = waited < kLongestSpin ? budget * 2 : budget / 2;
  impl_->spin_ns.store(std::clamp(next, kShortestSpin, kLongestSpin).count(),
                       std::memory_order_relaxed);
}

std::uint32_t Waiting::doorbell() const {
  return impl_->mine().doorbell.load(std::memory_order_acquire);
}

void Waiting::until_rung(std::uint32_t seen, Clock::time_point deadline) {
  RankControl& mine = impl_->mine();
  const auto started = Clock::now();
  const std::chrono::nanoseconds budget(impl_->spin_ns.load(std::memory_order_relaxed));
  do {
    for (int i = 0; i < (impl_->oversubscribed ? 1 : kSpinsPerLook); ++i) {
      if (mine.doorbell.load(std::memory_order_acquire) != seen) {
        return;
      }
      impl_->oversubscribed ? static_cast<void>(::sched_yield()) : pause();
    }
    check();
  } while (Clock::now() - started < budget);
  mine.doorbell_sleeper.fetch_add(1, std::memory_order_seq_cst);
  const auto now = Clock::now();
  if (mine.doorbell.load(std::memory_order_seq_cst) == seen && now < deadline) {
    futex_wait(mine.doorbell, seen,
               std::min<std::chrono::nanoseconds>(kLookAround, deadline - now));
  }
  mine.doorbell_sleeper.fetch_sub(1, std::memory_order_seq_cst);
  const auto waited = Clock::now() - started;
  impl_->spin_ns.store(
      std::clamp(waited < kLongestSpin ? budget * 2 : budget / 2, kShortestSpin, kLongestSpin)
          .count(),
      std::memory_order_relaxed);
  check();
}

void Waiting::ring(int peer) {
  RankControl& control = impl_->segment.control(peer);
  control.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (control.doorbell_sleeper.load(std::memory_order_seq_cst) != 0) {
    futex_wake_all(control.doorbell);
  }
}

std::optional<std::string> Waiting::gone(int peer) const {
  const RankState state = impl_->segment.control(peer).state.load(std::memory_order_acquire);
  if (state == RankState::kLeft) {
    return fmt::format("{} has left the communicator", name_peer(peer));
  }
  if (state == RankState::kAborted) {
    return fmt::format("{} has aborted the communicator", name_peer(peer));
  }
  const auto& process = impl_->processes[static_cast<std::size_t>(peer)];
  if (process && !process->is_alive()) {
    return fmt::format("rank {} (pid {}) has died", peer, impl_->segment.control(peer).pid);
  }
  return std::nullopt;
}

// A collective cannot end when any rank is gone that has not completed it, whoever is waited for
// just now. (One that has completed it may well have exited.)
void Waiting::look_for_losses() {
  const std::uint32_t sequence = impl_->mine().completed.load(std::memory_order_relaxed) + 1;
  for (int peer = 0; peer < impl_->ranks; ++peer) {
    if (peer == impl_->rank) {
      continue;
    }
    // In this order: a rank completes before it leaves.
    const auto why = gone(peer);
    const std::uint32_t completed =
        impl_->segment.control(peer).completed.load(std::memory_order_acquire);
    if (why && static_cast<std::int32_t>(completed - sequence) < 0) {
      throw break_communicator(Error(ErrorCode::kRemote, *why, {peer}));
    }
  }
}

void Waiting::check_processes() {
  for (int peer = 0; peer < impl_->ranks; ++peer) {
    const auto& process = impl_->processes[static_cast<std::size_t>(peer)];
    // In this order: one that leaves and then exits has left.
    if (process && !process->is_alive() &&
        impl_->segment.control(peer).state.load(std::memory_order_acquire) == RankState::kJoined) {
      throw Error(ErrorCode::kRemote, *gone(peer), {peer});
    }
  }
}

Error Waiting::break_communicator(const Error& cause) noexcept {
  SegmentHeader& facts = impl_->header();
  std::uint32_t whole = 0;
  if (facts.broken.compare_exchange_strong(whole, 1)) {
    facts.broken_code = cause.code();
    facts.broken_by = impl_->rank;
    const std::size_t length = std::min(std::strlen(cause.what()), sizeof(facts.broken_text) - 1);
    std::memcpy(facts.broken_text, cause.what(), length);
    facts.broken_text[length] = '\0';
    const std::size_t count = std::min(cause.ranks().size(), std::size(facts.broken_ranks));
    std::copy_n(cause.ranks().begin(), count, facts.broken_ranks);
    facts.broken_ranks_count = static_cast<std::int32_t>(count);
    facts.broken.store(2, std::memory_order_release);
  }
  for (int peer = 0; peer < impl_->ranks; ++peer) {
    RankControl& control = impl_->segment.control(peer);
    for (auto& lane : control.lanes) {
      futex_wake_all(lane);
    }
    for (auto& entry : control.entries) {
      futex_wake_all(entry.sequence);
    }
    ring(peer);
  }
  return impl_->stored_error();
}

void Waiting::abort(const std::string& reason) noexcept {
  {
    const std::scoped_lock lock(impl_->mutex);
    if (!impl_->aborted.load()) {
      impl_->abort_reason = reason;
      impl_->aborted.store(true, std::memory_order_release);
    }
  }
  impl_->mine().state.store(RankState::kAborted, std::memory_order_release);
  break_communicator(
      error(ErrorCode::kRemote, "rank {} aborted the communicator: {}", impl_->rank, reason));
}

std::string Waiting::name_peer(int peer) const {
  const RankControl& control = impl_->segment.control(peer);
  const auto& process = impl_->processes[static_cast<std::size_t>(peer)];
  if (!process) {
    return control.pid == 0 ? fmt::format("rank {}", peer)
                            : fmt::format("rank {} (a thread of this process)", peer);
  }
  if (!process->is_alive()) {
    return fmt::format("rank {} (pid {}, has exited)", peer, control.pid);
  }
  const char state = process_state(control.pid);
  const bool stopped = state == 'T' || state == 't';
  return fmt::format("rank {} (pid {}{})", peer, control.pid,
                     stopped ? ", stopped by a signal" : "");
}

}  // namespace ljtrain::accl
