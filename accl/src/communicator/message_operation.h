// One message under way, and what its two ranks say to each other about it.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "communicator/messages.h"

namespace ljtrain::accl {

// NCCL has no tags; c10d's default is 0.
inline std::string tag_note(int tag) { return tag == 0 ? "" : fmt::format(" (tag {})", tag); }

// ChunkHeader::kind in the lane of messages; `message` is the sender's number of the message.
enum MessageChunk : std::uint32_t {
  kShort,      // sender: announces a message (`tag`, `total` bytes) and holds all of it
  kLong,       // sender: announces a message that waits to be granted
  kData,       // sender: the next bytes of a granted message
  kCancelled,  // sender: forget it
  kGranted,    // receiver: send it
  kTaken,      // receiver: a short message has found its receive
  kRefused,    // receiver: its receive expects `total` bytes
  kGivenUp,    // receiver: of a granted message, send no more
};

class Messages::Operation final : public PendingMessage {
 public:
  enum class Stage : std::uint8_t {
    kUnsent,      // send: not announced yet
    kUnanswered,  // send: announced
    kStreaming,   // send: granted
    kPosted,      // receive: no message yet
    kIncoming,    // receive: granted
    kAnswering,   // receive: over, the answer waits for room
  };

  explicit Operation(const accl::Message& posted) : message(posted) {}
  bool is_done() const override { return done.load(std::memory_order_acquire); }
  int source() const override { return is_done() ? matched : kAnySource; }
  std::optional<Error> failure() const override { return is_done() ? outcome : std::nullopt; }

  bool is_send() const { return message.direction == accl::Message::Direction::kSend; }
  // "receive of 64 bytes (tag 3) from rank 1"
  std::string describe() const {
    return fmt::format("{} of {} bytes{} {} {}", is_send() ? "send" : "receive", message.bytes,
                       tag_note(message.tag), is_send() ? "to" : "from",
                       message.peer == kAnySource ? std::string("any rank")
                                                  : fmt::format("rank {}", message.peer));
  }

  const accl::Message message;
  std::chrono::nanoseconds timeout{};
  std::multimap<Clock::time_point, OperationPointer>::iterator place;  // in deadlines_
  Stage stage = Stage::kUnsent;
  int counted_by = kAnySource;  // the peer whose `pending` counts it
  int matched = kAnySource;     // the rank it came from
  std::uint32_t sequence = 0;
  std::uint64_t order = 0;  // of posting, on this rank
  std::size_t moved = 0;    // bytes of the stream
  // Written before `done`.
  std::optional<Error> outcome;
  std::atomic<bool> done{false};
};

}  // namespace ljtrain::accl
