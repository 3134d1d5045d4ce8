// The transport of one host. A stream is a ring in the segment with one writer and one reader:
//
//   ChannelControl | ChannelEntry[entries] | payload
//
// An entry carries a stamp that says which chunk it holds, so that the reader needs no counter of
// the writer: a chunk of up to 32 bytes moves in one cache line. Longer payloads lie in a ring of
// bytes. Everything is valid when zero.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "communicator/waiting.h"
#include "transport/shared_memory/segment.h"
#include "transport/transport.h"

namespace ljtrain::accl::shared_memory {

struct ChannelControl {
  // Written by the reader: chunks released so far (wraps).
  alignas(kCacheLine) std::atomic<std::uint32_t> released;
  // Set by the writer when it found no room; the reader then rings.
  alignas(kCacheLine) std::atomic<std::uint32_t> wants_room;
};

struct alignas(kCacheLine) ChannelEntry {
  std::atomic<std::uint32_t> stamp;  // chunk number + 1
  std::uint32_t offset;              // of the payload, where it is not inline
  ChunkHeader header;
  std::byte inline_payload[32];
};
static_assert(sizeof(ChannelEntry) == kCacheLine);

// Where things are in a channel of `bytes` at `base`.
struct ChannelLayout {
  ChannelLayout(std::byte* base, std::size_t bytes);
  ChannelControl* control;
  ChannelEntry* entries;
  std::uint32_t entry_count;  // a power of two
  std::byte* payload;
  std::size_t payload_bytes;  // a multiple of the cache line
  std::size_t max_chunk_bytes() const;
};

class ChannelWriter : public ChunkSender {
 public:
  ChannelWriter(const ChannelLayout& layout, Waiting& waiting, int peer);
  std::byte* try_reserve(std::size_t bytes) override;
  void commit(const ChunkHeader& header) override;

 private:
  bool has_room(std::size_t bytes);
  void see_released(std::uint32_t released);

  ChannelLayout layout_;
  Waiting& waiting_;
  int peer_;
  std::uint32_t next_ = 0;      // number of the chunk to be written
  std::uint32_t released_ = 0;  // as last seen
  // Positions in the ring of payload bytes, counted from the beginning of time.
  std::uint64_t head_ = 0;
  std::uint64_t freed_ = 0;
  std::uint64_t reserved_start_ = 0;
  std::uint64_t reserved_end_ = 0;
  std::size_t reserved_bytes_ = 0;
  std::vector<std::uint64_t> ends_;  // of each entry's payload
};

class ChannelReader : public ChunkReceiver {
 public:
  ChannelReader(const ChannelLayout& layout, Waiting& waiting, int peer);
  const Chunk* try_peek(std::uint32_t ahead = 0) override;
  void release() override;

 private:
  ChannelLayout layout_;
  Waiting& waiting_;
  int peer_;
  std::uint32_t next_ = 0;  // number of the oldest chunk not released
  Chunk chunk_;
};

// The streams of `rank` in one lane of the segment (see Segment::channel). Both must outlive it.
class ChannelTransport : public Transport {
 public:
  ChannelTransport(const Segment& segment, Waiting& waiting, int rank, int lane);
  ChunkSender& to(int peer) override;
  ChunkReceiver& from(int peer) override;
  std::size_t max_chunk_bytes() const override { return max_chunk_bytes_; }
  std::uint32_t doorbell() const override { return waiting_.doorbell(); }
  void wait(std::uint32_t seen, Clock::time_point deadline) override {
    waiting_.until_rung(seen, deadline);
  }
  void ring_self() override { waiting_.ring(rank_); }

 private:
  ChannelLayout layout(int from, int to) const;

  const Segment& segment_;
  Waiting& waiting_;
  int rank_;
  int lane_;
  std::size_t max_chunk_bytes_;
  // Made when first used: most ranks talk to few.
  std::vector<std::unique_ptr<ChannelWriter>> writers_;
  std::vector<std::unique_ptr<ChannelReader>> readers_;
};

}  // namespace ljtrain::accl::shared_memory
