#include "communicator/messages.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "communicator/message_operation.h"

namespace ljtrain::accl {
namespace {

// Longer ones wait for their receive to be posted: a copy costs more than the question.
constexpr std::size_t kLongestShort = std::size_t{32} << 10;
// Peers that are gone are noticed within this and the wait's own 50 ms.
constexpr std::chrono::milliseconds kLookAround{50};
constexpr std::uint32_t kPassesPerLook = 64;
constexpr std::size_t kDescribedAtMost = 4;
constexpr auto kForever = std::chrono::hours(24 * 365);

Clock::time_point after(std::chrono::nanoseconds timeout) {
  return timeout >= kForever ? Clock::time_point::max() : Clock::now() + timeout;
}

}  // namespace

class Messages::Waiter {
 public:
  explicit Waiter(std::atomic<int>& count) : count_(count) { count_.fetch_add(1); }
  ~Waiter() { count_.fetch_sub(1); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  std::atomic<int>& count_;
};

Messages::Messages(Transport& transport, Waiting& waiting, int rank, int ranks,
                   std::chrono::nanoseconds default_timeout)
    : transport_(transport),
      waiting_(waiting),
      rank_(rank),
      ranks_(ranks),
      default_timeout_(default_timeout),
      short_bytes_(std::min(kLongestShort, transport.max_chunk_bytes())),
      peers_(static_cast<std::size_t>(ranks)) {}

Messages::~Messages() = default;

MessageHandle Messages::post(const Message& message) {
  const bool is_send = message.direction == Message::Direction::kSend;
  if (message.peer >= ranks_ || (message.peer < 0 && (is_send || message.peer != kAnySource))) {
    throw error(ErrorCode::kInvalidArgument, "{} rank {}: the communicator has {} ranks",
                is_send ? "send to" : "receive from", message.peer, ranks_);
  }
  if (message.data == nullptr && message.bytes > 0) {
    throw error(ErrorCode::kInvalidArgument, "{} of {} bytes: the pointer is null",
                is_send ? "send" : "receive", message.bytes);
  }
  auto operation = std::make_shared<Operation>(message);
  operation->timeout = message.timeout.value_or(default_timeout_);
  bool others_should_look = false;
  {
    const std::scoped_lock lock(mutex_);
    waiting_.check();
    const std::uint64_t before = completions_.load();
    unfinished_ = false;
    operation->order = next_order_++;
    operation->place = deadlines_.emplace(after(operation->timeout), operation);
    operation->counted_by = message.peer;
    operation->matched = is_send ? rank_ : message.peer;
    ++(message.peer == kAnySource ? from_any_pending_ : at(message.peer).pending);
    pending_.fetch_add(1, std::memory_order_release);
    try {
      is_send ? post_send(operation) : post_receive(operation);
    } catch (const Error& cause) {
      break_all(cause);
    }
    others_should_look = unfinished_ || completions_.load() != before;
  }
  if (others_should_look && waiters_.load() > 0) {
    transport_.ring_self();
  }
  return operation;
}

// One pass, and a ring for this rank's other threads when it did something that concerns them.
Messages::Step Messages::step(int own_waiters) {
  Step result;
  bool others_should_look = false;
  {
    const std::scoped_lock lock(mutex_);
    const std::uint64_t before = completions_.load();
    result.moved = advance();
    others_should_look = completions_.load() != before;
    if (!deadlines_.empty()) {
      result.next_deadline = deadlines_.begin()->first;
    }
  }
  if (others_should_look && waiters_.load() > own_waiters) {
    transport_.ring_self();
  }
  return result;
}

bool Messages::progress() { return step(0).moved; }

// False when the communicator is broken: the next pass fails what is pending.
bool Messages::sleep(std::uint32_t seen, Clock::time_point until) {
  try {
    transport_.wait(seen, until);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void Messages::wait(std::span<const MessageHandle> messages) {
  const Waiter waiter(waiters_);
  std::size_t done = 0;
  const auto all_done = [&] {
    while (done < messages.size() && messages[done]->is_done()) {
      ++done;
    }
    return done == messages.size();
  };
  while (!all_done()) {
    const std::uint32_t seen = transport_.doorbell();
    const Step now = step(1);
    if (!now.moved && !all_done()) {
      sleep(seen, now.next_deadline);
    }
  }
  for (const MessageHandle& message : messages) {
    if (auto failure = message->failure()) {
      throw Error(*std::move(failure));
    }
  }
}

void Messages::wait_for_progress(std::chrono::nanoseconds at_most) {
  const Waiter waiter(waiters_);
  const Clock::time_point end = after(at_most);
  const std::uint64_t completed = completions_.load();
  for (;;) {
    const std::uint32_t seen = transport_.doorbell();
    if (interrupted_.exchange(false)) {
      return;
    }
    const Step now = step(1);
    if (now.moved || completions_.load() != completed || Clock::now() >= end) {
      return;
    }
    if (!sleep(seen, std::min(now.next_deadline, end)) && pending() == 0) {
      // Broken for good, and nobody rings any more: do not spin until the caller gives up.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void Messages::interrupt_wait() noexcept {
  interrupted_.store(true);
  transport_.ring_self();
}

std::string Messages::describe_pending() const {
  const std::scoped_lock lock(mutex_);
  std::string text;
  std::size_t described = 0;
  for (const auto& [deadline, operation] : deadlines_) {
    if (described == kDescribedAtMost) {
      return fmt::format("{}; and {} more", text, deadlines_.size() - described);
    }
    text += fmt::format("{}{}", described++ == 0 ? "" : "; ", operation->describe());
  }
  return text;
}

bool Messages::is_active(int peer) const {
  const Peer& facts = peers_[static_cast<std::size_t>(peer)];
  return peer != rank_ && (facts.pending > 0 || from_any_pending_ > 0 || !facts.notes.empty());
}

bool Messages::advance() {
  try {
    waiting_.check();
  } catch (const Error& cause) {
    return fail_all(cause);
  }
  try {
    bool moved = false;
    for (int i = 0; i < ranks_; ++i) {
      const int peer = (first_peer_ + i) % ranks_;
      if (is_active(peer)) {
        moved = advance_peer(peer) || moved;
      }
    }
    first_peer_ = (first_peer_ + 1) % ranks_;
    if (!moved || ++passes_ % kPassesPerLook == 0) {
      moved = look_around(Clock::now()) || moved;
    }
    return moved;
  } catch (const Error& cause) {
    return break_all(cause);
  }
}

bool Messages::look_around(Clock::time_point now) {
  bool moved = false;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const OperationPointer late = deadlines_.begin()->second;
    complete(late, withdraw(late, timed_out(*late)));
    moved = true;
  }
  if (now >= next_look_ && !deadlines_.empty()) {
    next_look_ = now + kLookAround;
    moved = look_at_peers() || moved;
  }
  // The cancellations.
  for (int peer = 0; peer < ranks_; ++peer) {
    if (!at(peer).notes.empty()) {
      moved = push(peer) || moved;
    }
  }
  return moved;
}

bool Messages::look_at_peers() {
  bool moved = false;
  std::string all_gone;
  int there = 0;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (!is_active(peer)) {
      continue;
    }
    const auto why = waiting_.gone(peer);
    if (!why) {
      ++there;
      continue;
    }
    // What it sent before counts.
    while (advance_peer(peer)) {
      moved = true;
    }
    moved = fail_those_with(peer, Error(ErrorCode::kRemote, *why, {peer})) || moved;
    all_gone += (all_gone.empty() ? "" : "; ") + *why;
  }
  if (there == 0 && from_any_pending_ > 0 && ranks_ > 1) {
    moved = fail_those_with(kAnySource, Error(ErrorCode::kRemote, all_gone)) || moved;
  }
  return moved;
}

bool Messages::fail_those_with(int peer, const Error& cause) {
  std::vector<OperationPointer> failing;
  for (const auto& [deadline, operation] : deadlines_) {
    if (operation->counted_by == peer) {
      failing.push_back(operation);
    }
  }
  for (const OperationPointer& operation : failing) {
    Error why(cause.code(), fmt::format("{}: {}", operation->describe(), cause.what()),
              cause.ranks());
    complete(operation, withdraw(operation, std::move(why)));
  }
  if (peer != kAnySource) {
    at(peer).notes.clear();
  }
  return !failing.empty();
}

bool Messages::fail_all(const Error& cause) {
  const bool any = !deadlines_.empty();
  while (!deadlines_.empty()) {
    complete(deadlines_.begin()->second, cause);
  }
  from_any_.clear();
  for (Peer& peer : peers_) {
    peer = Peer{};
  }
  return any;
}

bool Messages::break_all(const Error& cause) {
  return fail_all(waiting_.break_communicator(cause));
}

void Messages::complete(const OperationPointer& operation, std::optional<Error> failure) {
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): it may live in what is erased
  const OperationPointer held = operation;
  deadlines_.erase(held->place);
  --(held->counted_by == kAnySource ? from_any_pending_ : at(held->counted_by).pending);
  held->outcome = std::move(failure);
  held->done.store(true, std::memory_order_release);
  pending_.fetch_sub(1, std::memory_order_release);
  completions_.fetch_add(1);
}

std::optional<Error> Messages::withdraw(const OperationPointer& operation, Error cause) {
  using Stage = Operation::Stage;
  const auto remove = [&](std::deque<OperationPointer>& queue) { std::erase(queue, operation); };
  const auto tell = [&](std::uint32_t kind) {
    at(operation->counted_by).notes.push_back({.kind = kind, .sequence = operation->sequence});
  };
  const int tag = operation->message.tag;
  if (operation->counted_by == kAnySource) {
    remove(from_any_[tag]);
    return cause;
  }
  Peer& peer = at(operation->counted_by);
  switch (operation->stage) {
    case Stage::kUnsent:
      remove(peer.unsent);
      break;
    case Stage::kUnanswered:
      if (operation->counted_by == rank_) {
        std::erase_if(peer.arrived[tag], [&](const Arrival& a) { return a.own_send == operation; });
        break;
      }
      peer.unanswered.erase(operation->sequence);
      tell(kCancelled);
      break;
    case Stage::kStreaming:
      remove(peer.streaming);
      tell(kCancelled);
      break;
    case Stage::kPosted:
      remove(peer.posted[tag]);
      break;
    case Stage::kIncoming:
      peer.incoming.erase(operation->sequence);
      tell(kGivenUp);
      break;
    case Stage::kAnswering:
      for (Note& note : peer.notes) {
        if (note.operation == operation) {
          note.operation.reset();
          return std::exchange(note.failure, std::nullopt);
        }
      }
      break;
  }
  return cause;
}

// What has come from a peer that nobody has asked for: a tag mistaken shows here.
std::string Messages::others_from(int source) const {
  std::string text;
  std::size_t described = 0;
  for (const auto& [tag, arrivals] : peers_[static_cast<std::size_t>(source)].arrived) {
    for (const Arrival& arrival : arrivals) {
      if (described < kDescribedAtMost) {
        text +=
            fmt::format("{}{} bytes with tag {}", described == 0 ? "" : ", ", arrival.bytes, tag);
      }
      ++described;
    }
  }
  return described == 0 ? text : fmt::format("; it has sent, and nobody has received: {}", text);
}

Error Messages::timed_out(const Operation& operation) const {
  using Stage = Operation::Stage;
  std::string what;
  std::vector<int> about;
  const int peer = operation.counted_by;
  if (peer == kAnySource) {
    what = "no rank has sent it";
    for (int other = 0; other < ranks_; ++other) {
      if (other != rank_) {
        about.push_back(other);
        what += fmt::format("{} {}", about.size() == 1 ? ", waiting for" : ",",
                            waiting_.name_peer(other));
        what += others_from(other);
      }
    }
  } else {
    about.push_back(peer);
    const std::string name = waiting_.name_peer(peer);
    switch (operation.stage) {
      case Stage::kUnsent:
        what = fmt::format("{} takes nothing out of its full channel", name);
        break;
      case Stage::kUnanswered:
        what = fmt::format("{} has not received it", name);
        break;
      case Stage::kStreaming:
        what = fmt::format("{} has taken {} bytes of it and no more", name, operation.moved);
        break;
      case Stage::kPosted:
        what = fmt::format("{} has not sent it{}", name, others_from(peer));
        break;
      case Stage::kIncoming:
      case Stage::kAnswering:
        what = fmt::format("{} has sent {} bytes of it and no more", name, operation.moved);
        break;
    }
  }
  return {ErrorCode::kTimeout,
          fmt::format("{}: cancelled after {:.3g} s: {}", operation.describe(),
                      std::chrono::duration<double>(operation.timeout).count(), what),
          about};
}

}  // namespace ljtrain::accl
