#include "accl/communicator.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "algorithm/buffers.h"
#include "algorithm/direct.h"
#include "algorithm/pull.h"
#include "algorithm/recursive.h"
#include "algorithm/ring.h"
#include "algorithm/session.h"
#include "algorithm/tree.h"
#include "bootstrap/bootstrap.h"
#include "communicator/allocation.h"
#include "communicator/arguments.h"
#include "communicator/environment.h"
#include "communicator/messages.h"
#include "communicator/waiting.h"
#include "reduction/reduction.h"
#include "trace/log.h"
#include "transport/shared_memory/channel.h"
#include "tuner/tuner.h"

namespace ljtrain::accl {
namespace {

using shared_memory::RankState;
using shared_memory::Segment;

constexpr int kCollectiveLane = 0;
constexpr int kMessageLane = 1;
constexpr std::size_t kChannelBytes = 512 << 10;

// Counts forks on the child's side: a communicator is of no use in a child, which shares it with
// its parent.
std::atomic<unsigned> forks{0};
unsigned current_forks() {
  static const int once = ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
  static_cast<void>(once);
  return forks.load(std::memory_order_relaxed);
}

Clock::time_point after(std::chrono::nanoseconds timeout) {
  return Clock::now() + std::min<std::chrono::nanoseconds>(timeout, environment::kLongestTimeout);
}

double widening(DataType type) {
  return static_cast<double>(size_of(reduction::accumulator_type(type))) /
         static_cast<double>(size_of(type));
}

// Two descriptors fewer matter with thousands of groups, and the mapping keeps the memory.
Segment without_descriptor(Segment segment) {
  segment.close_memory_fd();
  return segment;
}

}  // namespace

namespace internal {

class CommunicatorState {
 public:
  CommunicatorState(Segment memory, int own_rank, int all, std::string own_name,
                    std::chrono::nanoseconds timeout)
      : segment(without_descriptor(std::move(memory))),
        waiting(segment, own_rank, all),
        pull(segment, own_rank, all),
        collective_streams(segment, waiting, own_rank, kCollectiveLane),
        message_streams(segment, waiting, own_rank, kMessageLane),
        messages(message_streams, waiting, own_rank, all, timeout),
        rank(own_rank),
        ranks(all),
        name(std::move(own_name)),
        default_timeout(timeout),
        born_after_forks(current_forks()) {}

  void run(const Collective& collective);
  void run_alone(const Collective& collective) const;
  void execute(Session& session, bool is_uneven);
  void check_usable();
  std::string describe_current() const;

  Segment segment;
  Waiting waiting;
  Pull pull;
  shared_memory::ChannelTransport collective_streams;
  shared_memory::ChannelTransport message_streams;
  Messages messages;
  const int rank;
  const int ranks;
  const std::string name;
  const std::chrono::nanoseconds default_timeout;
  const unsigned born_after_forks;

 private:
  std::mutex running_;
  tuner::Choices choices_{segment.header().tuning, ranks};
  std::uint64_t sequence_ = 0;
  std::uint32_t chunks_ = 0;
};

void CommunicatorState::check_usable() {
  if (born_after_forks != current_forks()) [[unlikely]] {
    throw error(
        ErrorCode::kInvalidUsage,
        "communicator \"{}\" was made before this process was forked: a child must make its own",
        name);
  }
  waiting.check();
}

// With one rank every collective is a copy (of the scaled data, for kPremulSum).
void CommunicatorState::run_alone(const Collective& call) const {
  const void* from = call.send_parts.empty() ? call.send : call.send_parts[0].data;
  void* to = call.recv_parts.empty() ? call.recv : call.recv_parts[0].data;
  std::size_t count = call.count;
  if (call.kind == OperationKind::kAllToAll) {
    const Buffers buffers(call, rank);
    count = buffers.send_count(0);
    if (count != buffers.recv_count(0)) {
      throw error(ErrorCode::kInvalidUsage,
                  "all_to_all: rank 0 sends {} elements to itself and expects {}", count,
                  buffers.recv_count(0));
    }
  }
  if (call.kind == OperationKind::kBarrier || count == 0) {
    return;
  }
  const bool scales =
      call.op == ReduceOp::kPremulSum &&
      (call.kind == OperationKind::kAllReduce || call.kind == OperationKind::kReduce ||
       call.kind == OperationKind::kReduceScatter);
  if (scales) {
    reduction::reduce({.destination = to,
                       .sources = {&from, 1},
                       .scales = {&call.scale, 1},
                       .count = count,
                       .type = call.type,
                       .op = call.op});
  } else if (from != to) {
    std::memmove(to, from, count * size_of(call.type));
  }
}

void CommunicatorState::run(const Collective& call) {
  check_arguments(call, rank, ranks);
  check_usable();  // before the lock, which a thread that a forked child does not have may hold
  const std::scoped_lock lock(running_);
  if (ranks == 1) {
    run_alone(call);
    return;
  }
  ++sequence_;
  const auto descriptor = make_descriptor(call, sequence_);
  Session session(segment, waiting, rank, ranks, chunks_, call, descriptor,
                  call.timeout.value_or(default_timeout));
  try {
    execute(session, descriptor.shares != 0);
  } catch (const Error& failure) {
    // Half-way through, this rank's counters no longer mean what its peers think. Broken already,
    // in most cases.
    waiting.break_communicator(failure);
    throw;
  } catch (const std::exception& failure) {
    throw waiting.break_communicator(error(ErrorCode::kSystem, "rank {}: {} in collective #{}",
                                           rank, failure.what(), sequence_));
  }
  segment.control(rank).completed.store(static_cast<std::uint32_t>(sequence_),
                                        std::memory_order_release);
}

void CommunicatorState::execute(Session& session, bool is_uneven) {
  const Collective& call = session.collective();
  const auto& tuning = segment.header().tuning;
  const std::size_t bytes = call.count * size_of(call.type);
  if (call.kind == OperationKind::kAllToAll) {
    const auto place = [&] { session.place(find_buffers(call, rank, ranks)); };
    const auto pull_all = [&] {
      return pull.try_run(session, tuner::is_process_read_faster(tuning, bytes));
    };
    direct::all_to_all(session, std::ref(place), std::ref(pull_all));
    return;
  }
  const auto try_pull = [&] {
    session.place(find_buffers(call, rank, ranks));
    session.enter();
    session.meet_all();
    return pull.try_run(session, tuner::is_process_read_faster(tuning, bytes));
  };
  // With uneven shares `bytes` differs between ranks, who must choose alike.
  const auto algorithm = is_uneven ? tuner::Algorithm::kStaged
                                   : choices_.choose(call.kind, bytes, widening(call.type));
  if (direct::is_one_step(call, ranks, tuning.one_shot_bytes) &&
      (is_uneven || algorithm == tuner::Algorithm::kOneStep)) {
    direct::one_step(session);
  } else if (algorithm == tuner::Algorithm::kOneStep || algorithm == tuner::Algorithm::kStaged) {
    if (!try_pull()) {
      direct::staged(session);
    }
  } else {
    session.enter();
    session.meet_all();
    const algorithm::StreamContext streams{.rank = rank,
                                           .ranks = ranks,
                                           .transport = collective_streams,
                                           .waiting = waiting,
                                           .wait = session.wait_context(),
                                           .chunk_bytes = tuning.chunk_bytes};
    switch (algorithm) {
      case tuner::Algorithm::kRing:
        algorithm::ring(streams, call);
        break;
      case tuner::Algorithm::kTree:
        algorithm::tree(streams, call);
        break;
      case tuner::Algorithm::kRecursiveDoubling:
        algorithm::recursive_doubling(streams, call);
        break;
      default:
        algorithm::halving_doubling(streams, call);
        break;
    }
  }
}

std::string CommunicatorState::describe_current() const {
  const auto& control = segment.control(rank);
  // Counters wrap: the later of the two is the one ahead by less than half their range.
  const std::uint32_t even = control.entries[0].sequence.load();
  const std::uint32_t odd = control.entries[1].sequence.load();
  const std::uint32_t entered = static_cast<std::int32_t>(odd - even) > 0 ? odd : even;
  if (static_cast<std::int32_t>(entered - control.completed.load()) <= 0) {
    return {};
  }
  return fmt::format("#{} {}", entered, describe(control.descriptors[entered % 4]));
}

}  // namespace internal

Communicator::Communicator(std::unique_ptr<internal::CommunicatorState> state)
    : state_(std::move(state)) {}

std::shared_ptr<Communicator> Communicator::create(const UniqueId& id, int rank, int size,
                                                   const CommunicatorOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw error(ErrorCode::kInvalidArgument, "rank {} of {} ranks does not exist", rank, size);
  }
  const std::chrono::nanoseconds timeout = std::min<std::chrono::nanoseconds>(
      options.timeout ? *options.timeout : environment::timeout(), environment::kLongestTimeout);
  bootstrap::Hello hello{};
  hello.rank = rank;
  hello.size = size;
  hello.deterministic = environment::is_on("ACCL_DETERMINISTIC") ? 1 : 0;
  std::ranges::copy(tuner::allowed_algorithms(std::getenv("NCCL_ALGO")), hello.allowed_algorithms);
  hello.heavy_barrier = register_for_heavy_barrier() ? 1 : 0;
  Segment segment = bootstrap::join(
      id, hello, after(timeout), options.cancelled.get(),
      [](const std::vector<bootstrap::Hello>& hellos) { return tuner::choose(hellos); },
      [](const shared_memory::Tuning& tuning) {
        return bootstrap::Sizes{.stage_bytes = stage_bytes_for(tuning.chunk_bytes),
                                .channel_bytes = kChannelBytes};
      });
  trace::info(
      trace::kInit, rank,
      "ACCL communicator of {} ranks on {} cores{}: shared memory, chunks of {} bytes, {}{}", size,
      segment.header().tuning.cores,
      segment.header().tuning.oversubscribed != 0 ? " (more ranks than cores: waiting yields)" : "",
      segment.header().tuning.chunk_bytes, reduction::instruction_set(),
      segment.header().tuning.deterministic != 0 ? ", deterministic" : "");
  std::string name = options.name;
  for (std::size_t i = 0; i < 4 && options.name.empty(); ++i) {
    name += fmt::format("{:02x}", static_cast<unsigned char>(id.bytes[i]));
  }
  return std::shared_ptr<Communicator>(new Communicator(  // NOLINT(cppcoreguidelines-owning-memory)
      std::make_unique<internal::CommunicatorState>(std::move(segment), rank, size, std::move(name),
                                                    timeout)));
}

Communicator::~Communicator() {
  auto& state = *state_;
  if (state.born_after_forks != current_forks()) {
    return;  // the parent's own
  }
  RankState joined = RankState::kJoined;
  state.segment.control(state.rank).state.compare_exchange_strong(joined, RankState::kLeft);
}

int Communicator::rank() const { return state_->rank; }
int Communicator::size() const { return state_->ranks; }
const std::string& Communicator::name() const { return state_->name; }

void Communicator::run(const Collective& collective) { state_->run(collective); }

void Communicator::abort(const std::string& reason) noexcept {
  if (state_->born_after_forks == current_forks()) {
    state_->waiting.abort(reason);
  }
}

std::optional<Error> Communicator::async_error() {
  try {
    state_->check_usable();
    state_->waiting.check_processes();
  } catch (const Error& failure) {
    return failure;
  }
  return std::nullopt;
}

MessageHandle Communicator::post(const Message& message) {
  state_->check_usable();
  return state_->messages.post(message);
}
bool Communicator::progress() {
  state_->check_usable();
  return state_->messages.progress();
}
void Communicator::wait(std::span<const MessageHandle> messages) {
  state_->check_usable();

  state_->messages.wait(messages);
}
void Communicator::wait_for_progress(std::chrono::nanoseconds at_most) {
  state_->check_usable();
  state_->messages.wait_for_progress(at_most);
}
void Communicator::interrupt_wait() noexcept { state_->messages.interrupt_wait(); }
std::size_t Communicator::messages_pending() const { return state_->messages.pending(); }

void* Communicator::allocate(std::size_t bytes) { return allocation::allocate(bytes); }
bool Communicator::deallocate(void* memory) noexcept { return allocation::deallocate(memory); }
bool Communicator::is_shared(const void* memory, std::size_t bytes) noexcept {
  return allocation::find(memory, bytes).id != 0;
}

std::string Communicator::current_operation() const { return state_->describe_current(); }

std::string Communicator::explain(OperationKind kind, DataType type, std::size_t bytes) const {
  const auto& tuning = state_->segment.header().tuning;
  std::string text = fmt::format(
      "topology: {} ranks on {} cores of one host{}; shared memory, chunks of {} KiB, {}\n"
      "measured: hand-over {:.2f} us, copy {:.1f} GB/s cached and {:.1f} GB/s beyond, reduce "
      "{:.1f} "
      "GB/s, process_vm_readv {}\n",
      state_->ranks, tuning.cores, state_->pull.is_one_process() ? ", threads of one process" : "",
      tuning.chunk_bytes >> 10, reduction::instruction_set(), tuning.hand_over_s * 1e6,
      1e-9 / tuning.copy_s_per_byte, 1e-9 / tuning.memory_copy_s_per_byte,
      1e-9 / tuning.reduce_s_per_byte,
      tuning.process_read_s_per_byte > 0
          ? fmt::format("{:.1f} GB/s", 1e-9 / tuning.process_read_s_per_byte)
          : std::string("not allowed"));
  text += fmt::format("{} of {} bytes:", name_of(kind), bytes);
  for (const auto& candidate :
       tuner::candidates(tuning, kind, bytes, state_->ranks, widening(type))) {
    text +=
        fmt::format(" {} {:.1f} us;", tuner::name_of(candidate.algorithm), candidate.seconds * 1e6);
  }
  text.back() = '\n';
  return text;
}

}  // namespace ljtrain::accl
