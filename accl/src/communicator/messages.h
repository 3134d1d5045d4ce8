// Messages between two ranks (send and receive), over the streams of a lane of their own,
// independent of collectives.
//
// A send is done when its receiver has taken it: that is how both sides learn of sizes that
// disagree. (Gloo and NCCL promise no more; who sends to each other posts both and then waits.)
// Short messages travel with their announcement; long ones are announced, granted by the receiver
// once a matching receive is posted, and then streamed, several at a time.
//
// A message that nobody has asked for stays in its stream and holds the sender back, until this
// rank needs what comes behind it: while any message of this rank with that peer is pending, such
// messages are moved to buffers of their own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "accl/communicator.h"
#include "communicator/waiting.h"
#include "transport/transport.h"

namespace ljtrain::accl {

// All messages of one rank. Thread-safe: any number of threads may post, progress and wait at once;
// none holds the lock while it sleeps.
class Messages {
 public:
  // Uses all streams of `transport`. Both must outlive it.
  Messages(Transport& transport, Waiting& waiting, int rank, int ranks,
           std::chrono::nanoseconds default_timeout);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // See Communicator. post() throws kInvalidArgument, or what broke the communicator.
  MessageHandle post(const Message& message);
  bool progress();
  void wait(std::span<const MessageHandle> messages);
  void wait_for_progress(std::chrono::nanoseconds at_most);
  void interrupt_wait() noexcept;
  std::size_t pending() const { return pending_.load(std::memory_order_acquire); }
  // What this rank waits for: "receive of 64 bytes (tag 3) from rank 1; send of ..."; empty when
  // nothing.
  std::string describe_pending() const;

 private:
  class Operation;
  using OperationPointer = std::shared_ptr<Operation>;
  using ByTag = std::unordered_map<int, std::deque<OperationPointer>>;

  // A message that came before its receive was posted.
  struct Arrival {
    std::uint32_t sequence = 0;
    std::uint64_t order = 0;
    std::uint64_t bytes = 0;
    std::unique_ptr<std::byte[]> payload = nullptr;  // of a short one
    OperationPointer own_send = nullptr;             // of a message to oneself
  };
  // An answer to a peer. It ends `operation` once it is in the stream: who has nothing pending owes
  // nothing either.
  struct Note {
    std::uint32_t kind = 0;
    std::uint32_t sequence = 0;
    std::uint64_t total = 0;
    OperationPointer operation = nullptr;
    std::optional<Error> failure = std::nullopt;
  };
  struct Peer {
    std::size_t pending = 0;  // operations that name this peer
    // As sender.
    std::uint32_t next_sequence = 0;
    std::deque<Note> notes;
    std::deque<OperationPointer> unsent;
    std::unordered_map<std::uint32_t, OperationPointer> unanswered;
    std::deque<OperationPointer> streaming;
    // As receiver.
    ByTag posted;
    std::unordered_map<int, std::deque<Arrival>> arrived;
    std::unordered_map<std::uint32_t, OperationPointer> incoming;  // by the sender's sequence
  };

  // Counts the threads that may sleep.
  class Waiter;
  struct Step {
    bool moved = false;
    Clock::time_point next_deadline = Clock::time_point::max();
  };
  Step step(int own_waiters);
  bool sleep(std::uint32_t seen, Clock::time_point until);

  // All below: with the lock held. What returns bool says whether anything moved.
  bool advance();
  bool advance_peer(int peer);
  bool drain(int peer);
  bool push(int peer);
  bool is_active(int peer) const;
  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }

  // False when the chunk has to stay where it is.
  bool handle(int source, const Chunk& chunk);
  void handle_answer(int source, const ChunkHeader& header);
  void handle_data(int source, const Chunk& chunk);
  void handle_cancelled(int source, std::uint32_t sequence);
  bool push_one(int peer);

  void post_send(const OperationPointer& send);
  void post_receive(const OperationPointer& receive);
  OperationPointer match_posted(int source, int tag);
  bool match_arrived(const OperationPointer& receive);
  // `payload`: of a short message, else nullptr.
  void accept(const OperationPointer& receive, int source, std::uint32_t sequence,
              std::uint64_t bytes, const std::byte* payload);
  void accept_own(const OperationPointer& receive, const OperationPointer& send);
  void set_source(const OperationPointer& receive, int source);

  bool look_around(Clock::time_point now);
  void expire(const OperationPointer& operation);
  bool look_at_peers();
  bool fail_those_with(int peer, const Error& cause);
  bool fail_all(const Error& cause);
  // A fault in a stream: nothing in it can be trusted any more.
  bool break_all(const Error& cause);
  // Takes it out of the queues it is in. When its answer is only waiting for room, that is its
  // outcome.
  std::optional<Error> withdraw(const OperationPointer& operation, Error cause);
  void complete(const OperationPointer& operation, std::optional<Error> failure);
  Error timed_out(const Operation& operation) const;
  std::string others_from(int source) const;

  Transport& transport_;
  Waiting& waiting_;
  const int rank_;
  const int ranks_;
  const std::chrono::nanoseconds default_timeout_;
  const std::size_t short_bytes_;  // messages up to this travel with their announcement

  mutable std::mutex mutex_;
  std::vector<Peer> peers_;
  ByTag from_any_;
  std::size_t from_any_pending_ = 0;
  std::uint64_t next_order_ = 0;
  std::multimap<Clock::time_point, OperationPointer> deadlines_;  // all that are pending
  Clock::time_point next_look_;
  int first_peer_ = 0;  // to be looked at next: nobody is always last

  std::uint32_t passes_ = 0;
  bool unfinished_ = false;  // a pass stopped at its bound, not for want of chunks or room

  std::atomic<std::size_t> pending_{0};
  std::atomic<std::uint64_t> completions_{0};
  std::atomic<int> waiters_{0};
  std::atomic<bool> interrupted_{false};
};

}  // namespace ljtrain::accl
