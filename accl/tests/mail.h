// What the tests of messages share: a rank's mailbox, and contents that tell messages apart.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "communicator/messages.h"
#include "segment_ranks.h"
#include "transport/shared_memory/channel.h"

namespace ljtrain::accl::test {

using Bytes = std::vector<std::byte>;

// What a rank has in a communicator.
struct Mail {
  explicit Mail(const Rank& self, std::chrono::nanoseconds timeout = std::chrono::seconds(20))
      : rank(self.rank),
        ranks(self.ranks),
        waiting(self.waiting),
        transport(self.segment, self.waiting, self.rank, 1),
        messages(transport, self.waiting, self.rank, self.ranks, timeout) {}

  MessageHandle send(const Bytes& data, int peer, int tag = 0,
                     std::optional<std::chrono::nanoseconds> timeout = std::nullopt) {
    return messages.post({.direction = Message::Direction::kSend,
                          .data = const_cast<std::byte*>(data.data()),
                          .bytes = data.size(),
                          .peer = peer,
                          .tag = tag,
                          .timeout = timeout});
  }
  MessageHandle receive(Bytes& data, int peer, int tag = 0,
                        std::optional<std::chrono::nanoseconds> timeout = std::nullopt) {
    return messages.post({.direction = Message::Direction::kReceive,
                          .data = data.data(),
                          .bytes = data.size(),
                          .peer = peer,
                          .tag = tag,
                          .timeout = timeout});
  }
  void wait(const MessageHandle& handle) { messages.wait(std::span(&handle, 1)); }
  // The failure of a message that must fail.
  Error failure(const MessageHandle& handle) {
    try {
      wait(handle);
    } catch (const Error& failure) {
      return failure;
    }
    return {ErrorCode::kInternal, "it did not fail"};
  }
  // All ranks have come here.
  void barrier() {
    constexpr int kTag = -77;
    std::vector<MessageHandle> handles;
    Bytes nothing;
    for (int peer = 0; peer < ranks; ++peer) {
      handles.push_back(send(nothing, peer, kTag));
      handles.push_back(receive(nothing, peer, kTag));
    }
    messages.wait(handles);
  }

  int rank;
  int ranks;
  Waiting& waiting;
  shared_memory::ChannelTransport transport;
  Messages messages;
};

// Contents that tell sender, receiver, tag and number apart.
inline Bytes contents(std::size_t bytes, int from, int to, int tag, int number) {
  Bytes data(bytes);
  const auto seed = static_cast<unsigned>(from * 7 + to * 31 + tag * 101 + number * 17);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>((seed + i * 3 + i / 256) & 0xFF);
  }
  return data;
}

}  // namespace ljtrain::accl::test
