// What the two ranks of a message do: matching, answering, streaming. See messages.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "communicator/message_operation.h"
#include "communicator/messages.h"

namespace ljtrain::accl {
namespace {

// A pass under the lock ends after so many chunks of one peer, also when the other side keeps up.
constexpr int kChunksPerPass = 64;

template <typename Queues>
auto take_front(Queues& queues, typename Queues::iterator queue) {
  auto front = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) {
    queues.erase(queue);
  }
  return front;
}

bool is_announcement(std::uint32_t kind) { return kind == kShort || kind == kLong; }

void copy_bytes(void* destination, const void* source, std::size_t bytes) {
  if (bytes > 0) {
    std::memcpy(destination, source, bytes);
  }
}

Error disagreement(int source, std::uint64_t sent, int destination, std::uint64_t expected, int tag,
                   int peer) {
  return {ErrorCode::kInvalidUsage,
          fmt::format("rank {} sends {} bytes to rank {}{}, which expects {}", source, sent,
                      destination, tag_note(tag), expected),
          {peer}};
}

// Messages that their sender has taken back, although the word of it comes behind them.
std::vector<std::uint32_t> cancelled_in(ChunkReceiver& stream) {
  std::vector<std::uint32_t> cancelled;
  for (std::uint32_t ahead = 0;; ++ahead) {
    const Chunk* chunk = stream.try_peek(ahead);
    if (chunk == nullptr) {
      return cancelled;
    }
    if (chunk->header.kind == kCancelled) {
      cancelled.push_back(chunk->header.message);
    }
  }
}

}  // namespace

void Messages::post_send(const OperationPointer& send) {
  const int peer = send->message.peer;
  if (peer != rank_) {
    at(peer).unsent.push_back(send);
    advance_peer(peer);
    return;
  }
  send->stage = Operation::Stage::kUnanswered;
  if (const OperationPointer receive = match_posted(rank_, send->message.tag)) {
    accept_own(receive, send);
    return;
  }
  at(rank_).arrived[send->message.tag].push_back(
      {.order = next_order_++, .bytes = send->message.bytes, .own_send = send});
}

void Messages::post_receive(const OperationPointer& receive) {
  const int source = receive->message.peer;
  receive->stage = Operation::Stage::kPosted;
  if (!match_arrived(receive)) {
    ByTag& queues = source == kAnySource ? from_any_ : at(source).posted;
    queues[receive->message.tag].push_back(receive);
  }
  const int first = source == kAnySource ? 0 : source;
  const int last = source == kAnySource ? ranks_ - 1 : source;
  for (int peer = first; peer <= last && !receive->is_done(); ++peer) {
    if (peer != rank_) {
      advance_peer(peer);
    }
  }
}

// The receive that a message belongs to: of those posted for its source and for any, the older.
Messages::OperationPointer Messages::match_posted(int source, int tag) {
  ByTag& posted = at(source).posted;
  const auto named = posted.find(tag);
  const auto any = from_any_.find(tag);
  const bool has_named = named != posted.end() && !named->second.empty();
  const bool has_any = any != from_any_.end() && !any->second.empty();
  if (!has_named && !has_any) {
    return nullptr;
  }
  if (has_named && (!has_any || named->second.front()->order < any->second.front()->order)) {
    return take_front(posted, named);
  }
  return take_front(from_any_, any);
}

// Finds a message that came before its receive.
bool Messages::match_arrived(const OperationPointer& receive) {
  const int tag = receive->message.tag;
  int source = kAnySource;
  std::uint64_t oldest = 0;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (receive->message.peer != kAnySource && receive->message.peer != peer) {
      continue;
    }
    const auto queue = at(peer).arrived.find(tag);
    if (queue != at(peer).arrived.end() && !queue->second.empty() &&
        (source == kAnySource || queue->second.front().order < oldest)) {
      source = peer;
      oldest = queue->second.front().order;
    }
  }
  if (source == kAnySource) {
    return false;
  }
  auto& arrived = at(source).arrived;
  const Arrival arrival = take_front(arrived, arrived.find(tag));
  if (arrival.own_send) {
    accept_own(receive, arrival.own_send);
  } else {
    accept(receive, source, arrival.sequence, arrival.bytes, arrival.payload.get());
  }
  return true;
}

void Messages::set_source(const OperationPointer& receive, int source) {
  receive->matched = source;
  if (receive->counted_by == kAnySource) {
    --from_any_pending_;
    ++at(source).pending;
    receive->counted_by = source;
  }
}

void Messages::accept(const OperationPointer& receive, int source, std::uint32_t sequence,
                      std::uint64_t bytes, const std::byte* payload) {
  set_source(receive, source);
  receive->sequence = sequence;
  Peer& peer = at(source);
  const std::size_t expected = receive->message.bytes;
  receive->stage = Operation::Stage::kAnswering;
  if (bytes != expected) {
    peer.notes.push_back(
        {.kind = kRefused,
         .sequence = sequence,
         .total = expected,
         .operation = receive,
         .failure = disagreement(source, bytes, rank_, expected, receive->message.tag, source)});
  } else if (payload != nullptr) {
    copy_bytes(receive->message.data, payload, expected);
    peer.notes.push_back({.kind = kTaken, .sequence = sequence, .operation = receive});
  } else {
    receive->stage = Operation::Stage::kIncoming;
    peer.incoming.emplace(sequence, receive);
    peer.notes.push_back({.kind = kGranted, .sequence = sequence});
  }
}

void Messages::accept_own(const OperationPointer& receive, const OperationPointer& send) {
  set_source(receive, rank_);
  std::optional<Error> failure;
  if (receive->message.bytes == send->message.bytes) {
    copy_bytes(receive->message.data, send->message.data, send->message.bytes);
  } else {
    failure = disagreement(rank_, send->message.bytes, rank_, receive->message.bytes,
                           receive->message.tag, rank_);
  }
  complete(send, failure);
  complete(receive, failure);
}

bool Messages::advance_peer(int peer) {
  const bool came = drain(peer);
  const bool went = push(peer);
  return came || went;
}

bool Messages::drain(int peer) {
  ChunkReceiver& stream = transport_.from(peer);
  std::optional<std::vector<std::uint32_t>> cancelled;
  for (int handled = 0; handled < kChunksPerPass; ++handled) {
    const Chunk* chunk = stream.try_peek();
    if (chunk == nullptr) {
      return handled > 0;
    }
    if (is_announcement(chunk->header.kind)) {
      if (!cancelled) {
        cancelled = cancelled_in(stream);
        chunk = stream.try_peek();
      }
      const bool is_void = std::ranges::find(*cancelled, chunk->header.message) != cancelled->end();
      if (!is_void && !handle(peer, *chunk)) {
        return handled > 0;
      }
    } else {
      handle(peer, *chunk);
    }
    stream.release();
  }
  unfinished_ = true;
  return true;
}

bool Messages::handle(int source, const Chunk& chunk) {
  const ChunkHeader& header = chunk.header;
  switch (header.kind) {
    case kShort:
    case kLong: {
      const bool is_short = header.kind == kShort;
      if (const OperationPointer receive = match_posted(source, header.tag)) {
        accept(receive, source, header.message, header.total, is_short ? chunk.payload : nullptr);
        return true;
      }
      if (is_short && at(source).pending == 0 && from_any_pending_ == 0) {
        return false;
      }
      Arrival arrival{.sequence = header.message,
                      .order = next_order_++,
                      .bytes = header.total,
                      .payload = is_short ? std::make_unique<std::byte[]>(header.bytes) : nullptr};
      if (is_short) {
        copy_bytes(arrival.payload.get(), chunk.payload, header.bytes);
      }
      at(source).arrived[header.tag].push_back(std::move(arrival));
      return true;
    }
    case kData:
      handle_data(source, chunk);
      return true;
    case kCancelled:
      handle_cancelled(source, header.message);
      return true;
    default:
      handle_answer(source, header);
      return true;
  }
}

void Messages::handle_data(int source, const Chunk& chunk) {
  Peer& peer = at(source);
  const auto found = peer.incoming.find(chunk.header.message);
  if (found == peer.incoming.end()) {
    return;  // given up
  }
  const OperationPointer receive = found->second;
  if (chunk.header.bytes > receive->message.bytes - receive->moved) {
    throw error(ErrorCode::kInternal, "rank {} sends more bytes than it announced", source);
  }
  copy_bytes(static_cast<std::byte*>(receive->message.data) + receive->moved, chunk.payload,
             chunk.header.bytes);
  receive->moved += chunk.header.bytes;
  if (receive->moved == receive->message.bytes) {
    peer.incoming.erase(found);
    complete(receive, std::nullopt);
  }
}

void Messages::handle_cancelled(int source, std::uint32_t sequence) {
  Peer& peer = at(source);
  for (auto& [tag, arrivals] : peer.arrived) {
    std::erase_if(arrivals, [&](const Arrival& arrival) { return arrival.sequence == sequence; });
  }
  if (const auto found = peer.incoming.find(sequence); found != peer.incoming.end()) {
    const OperationPointer receive = found->second;
    peer.incoming.erase(found);
    complete(receive, error(ErrorCode::kRemote, "{}: {} gave up sending after {} bytes",
                            receive->describe(), waiting_.name_peer(source), receive->moved));
  }
}

void Messages::handle_answer(int source, const ChunkHeader& header) {
  Peer& peer = at(source);
  if (header.kind == kGivenUp) {
    const auto found = std::ranges::find(peer.streaming, header.message, &Operation::sequence);
    if (found != peer.streaming.end()) {
      const OperationPointer send = std::move(*found);
      peer.streaming.erase(found);
      complete(send, error(ErrorCode::kRemote, "{}: {} gave up receiving after at most {} bytes",
                           send->describe(), waiting_.name_peer(source), send->moved));
    }
    return;
  }
  const auto found = peer.unanswered.find(header.message);
  if (found == peer.unanswered.end()) {
    return;  // cancelled
  }
  const OperationPointer send = found->second;
  peer.unanswered.erase(found);
  if (header.kind == kGranted) {
    send->stage = Operation::Stage::kStreaming;
    peer.streaming.push_back(send);
  } else if (header.kind == kTaken) {
    complete(send, std::nullopt);
  } else if (header.kind == kRefused) {
    complete(send, disagreement(rank_, send->message.bytes, source, header.total, send->message.tag,
                                source));
  } else {
    throw error(ErrorCode::kInternal, "rank {} answers with {}", source, header.kind);
  }
}

bool Messages::push(int peer) {
  int pushed = 0;
  while (pushed < kChunksPerPass && push_one(peer)) {
    ++pushed;
  }
  unfinished_ = unfinished_ || pushed == kChunksPerPass;
  return pushed > 0;
}

// False when there is nothing to send, or no room.
bool Messages::push_one(int rank) {
  Peer& peer = at(rank);
  if (!peer.notes.empty()) {
    ChunkSender& stream = transport_.to(rank);
    if (stream.try_reserve(0) == nullptr) {
      return false;
    }
    Note note = std::move(peer.notes.front());
    peer.notes.pop_front();
    stream.commit({.kind = note.kind, .message = note.sequence, .total = note.total});
    if (note.operation) {
      complete(note.operation, std::move(note.failure));
    }
    return true;
  }
  if (!peer.unsent.empty()) {
    const OperationPointer send = peer.unsent.front();
    const std::size_t bytes = send->message.bytes <= short_bytes_ ? send->message.bytes : 0;
    ChunkSender& stream = transport_.to(rank);
    std::byte* payload = stream.try_reserve(bytes);
    if (payload == nullptr) {
      return false;
    }
    peer.unsent.pop_front();
    copy_bytes(payload, send->message.data, bytes);
    send->sequence = peer.next_sequence++;
    send->stage = Operation::Stage::kUnanswered;
    peer.unanswered.emplace(send->sequence, send);
    stream.commit({.bytes = static_cast<std::uint32_t>(bytes),
                   .kind = bytes == send->message.bytes ? kShort : kLong,
                   .tag = send->message.tag,
                   .message = send->sequence,
                   .total = send->message.bytes});
    return true;
  }
  if (peer.streaming.empty()) {
    return false;
  }
  const OperationPointer send = peer.streaming.front();
  const std::size_t bytes =
      std::min(transport_.max_chunk_bytes() / 2, send->message.bytes - send->moved);
  ChunkSender& stream = transport_.to(rank);
  std::byte* payload = stream.try_reserve(bytes);
  if (payload == nullptr) {
    return false;
  }
  copy_bytes(payload, static_cast<const std::byte*>(send->message.data) + send->moved, bytes);
  stream.commit(
      {.bytes = static_cast<std::uint32_t>(bytes), .kind = kData, .message = send->sequence});
  send->moved += bytes;
  // One chunk each in turn: a huge message does not hold up the others.
  peer.streaming.pop_front();
  if (send->moved == send->message.bytes) {
    complete(send, std::nullopt);
  } else {
    peer.streaming.push_back(send);
  }
  return true;
}

}  // namespace ljtrain::accl
