#include "transport/shared_memory/channel.h"

#include <algorithm>
#include <bit>

namespace ljtrain::accl::shared_memory {
namespace {

constexpr std::size_t kBytesPerEntry = 1024;  // of the channel: one sixteenth goes to entries
constexpr std::size_t kFewestEntries = 8;
constexpr std::size_t kMostEntries = 512;
// A chunk may waste up to its own size where the ring wraps: a quarter leaves room for three,
// always.
constexpr std::size_t kChunksPerRing = 4;
// ChannelEntry::offset of a payload that lies in the entry itself.
constexpr std::uint32_t kInlineOffset = ~0U;

std::size_t round_to_line(std::size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

}  // namespace

ChannelLayout::ChannelLayout(std::byte* base, std::size_t bytes)
    : control(reinterpret_cast<ChannelControl*>(base)),
      entries(reinterpret_cast<ChannelEntry*>(base + sizeof(ChannelControl))),
      entry_count(static_cast<std::uint32_t>(
          std::clamp(std::bit_floor(bytes / kBytesPerEntry), kFewestEntries, kMostEntries))) {
  const std::size_t front = sizeof(ChannelControl) + entry_count * sizeof(ChannelEntry);
  if (bytes < front + kChunksPerRing * kCacheLine) {
    throw error(ErrorCode::kInternal, "a channel of {} bytes is too small", bytes);
  }
  payload = base + front;
  payload_bytes = (bytes - front) / kCacheLine * kCacheLine;
}

std::size_t ChannelLayout::max_chunk_bytes() const {
  return payload_bytes / kChunksPerRing / kCacheLine * kCacheLine;
}

ChannelWriter::ChannelWriter(const ChannelLayout& layout, Waiting& waiting, int peer)
    : layout_(layout), waiting_(waiting), peer_(peer), ends_(layout.entry_count) {}

void ChannelWriter::see_released(std::uint32_t released) {
  if (released != released_) {
    released_ = released;
    freed_ = ends_[(released - 1) % layout_.entry_count];
  }
}

// Also finds the place.
bool ChannelWriter::has_room(std::size_t bytes) {
  if (next_ - released_ >= layout_.entry_count) {
    return false;
  }
  reserved_start_ = reserved_end_ = head_;
  if (bytes > sizeof(ChannelEntry::inline_payload)) {
    const std::size_t length = round_to_line(bytes);
    const std::size_t offset = head_ % layout_.payload_bytes;
    if (offset + length > layout_.payload_bytes) {
      reserved_start_ += layout_.payload_bytes - offset;
    }
    reserved_end_ = reserved_start_ + length;
  }
  return reserved_end_ - freed_ <= layout_.payload_bytes;
}

std::byte* ChannelWriter::try_reserve(std::size_t bytes) {
  if (bytes > layout_.max_chunk_bytes()) {
    throw error(ErrorCode::kInternal, "a chunk of {} bytes in a channel that takes {}", bytes,
                layout_.max_chunk_bytes());
  }
  if (!has_room(bytes)) {
    see_released(layout_.control->released.load(std::memory_order_acquire));
    if (!has_room(bytes)) {
      // Ask for a ring before the last look, as the reader releases before it looks at the wish:
      // one of the two sees the other.
      layout_.control->wants_room.exchange(1, std::memory_order_seq_cst);
      see_released(layout_.control->released.load(std::memory_order_seq_cst));
      if (!has_room(bytes)) {
        return nullptr;
      }
    }
  }
  reserved_bytes_ = bytes;
  return bytes > sizeof(ChannelEntry::inline_payload)
             ? layout_.payload + reserved_start_ % layout_.payload_bytes
             : layout_.entries[next_ % layout_.entry_count].inline_payload;
}

void ChannelWriter::commit(const ChunkHeader& header) {
  const std::uint32_t index = next_ % layout_.entry_count;
  ChannelEntry& entry = layout_.entries[index];
  entry.header = header;
  // Where the payload is follows from what was reserved, not from what is sent.
  entry.offset = reserved_bytes_ > sizeof(entry.inline_payload)
                     ? static_cast<std::uint32_t>(reserved_start_ % layout_.payload_bytes)
                     : kInlineOffset;
  head_ = reserved_end_;
  ends_[index] = head_;
  ++next_;
  entry.stamp.store(next_, std::memory_order_release);
  waiting_.ring(peer_);
}

ChannelReader::ChannelReader(const ChannelLayout& layout, Waiting& waiting, int peer)
    : layout_(layout), waiting_(waiting), peer_(peer) {}

const Chunk* ChannelReader::try_peek(std::uint32_t ahead) {
  const std::uint32_t number = next_ + ahead;
  const ChannelEntry& entry = layout_.entries[number % layout_.entry_count];
  if (ahead >= layout_.entry_count || entry.stamp.load(std::memory_order_acquire) != number + 1) {
    return nullptr;
  }
  chunk_.header = entry.header;
  const bool is_inline = entry.offset == kInlineOffset;
  const std::size_t limit = is_inline ? sizeof(entry.inline_payload)
                            : entry.offset < layout_.payload_bytes
                                ? layout_.payload_bytes - entry.offset
                                : 0;
  if (chunk_.header.bytes > limit) {
    throw error(ErrorCode::kInternal,
                "rank {} left a chunk of {} bytes that its channel cannot hold", peer_,
                chunk_.header.bytes);
  }
  chunk_.payload = is_inline ? entry.inline_payload : layout_.payload + entry.offset;
  return &chunk_;
}

void ChannelReader::release() {
  ++next_;
  ChannelControl& control = *layout_.control;
  control.released.exchange(next_, std::memory_order_seq_cst);
  if (control.wants_room.load(std::memory_order_seq_cst) != 0) [[unlikely]] {
    control.wants_room.exchange(0, std::memory_order_seq_cst);
    waiting_.ring(peer_);
  }
}

ChannelTransport::ChannelTransport(const Segment& segment, Waiting& waiting, int rank, int lane)
    : segment_(segment),
      waiting_(waiting),
      rank_(rank),
      lane_(lane),
      max_chunk_bytes_(layout(rank, rank).max_chunk_bytes()),
      writers_(segment.header().ranks),
      readers_(segment.header().ranks) {}

ChannelLayout ChannelTransport::layout(int from, int to) const {
  return {segment_.channel(lane_, from, to), segment_.header().channel_bytes};
}

ChunkSender& ChannelTransport::to(int peer) {
  auto& writer = writers_[static_cast<std::size_t>(peer)];
  if (!writer) {
    writer = std::make_unique<ChannelWriter>(layout(rank_, peer), waiting_, peer);
  }
  return *writer;
}

ChunkReceiver& ChannelTransport::from(int peer) {
  auto& reader = readers_[static_cast<std::size_t>(peer)];
  if (!reader) {
    reader = std::make_unique<ChannelReader>(layout(peer, rank_), waiting_, peer);
  }
  return *reader;
}

}  // namespace ljtrain::accl::shared_memory
