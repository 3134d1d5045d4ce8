// What carries bytes from rank to rank: ordered, flow-controlled, one-way streams of chunks.
// Nothing here blocks. Shared memory implements it (shared_memory/channel.h); what joins hosts will
// implement the same.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ljtrain::accl {

// Travels with every chunk. The transport reads `bytes` only; the rest is the users' own.
struct ChunkHeader {
  std::uint32_t bytes = 0;  // of the payload
  std::uint32_t kind = 0;
  std::int32_t tag = 0;
  std::uint32_t message = 0;
  std::uint64_t total = 0;
};

struct Chunk {
  ChunkHeader header;
  const std::byte* payload = nullptr;  // any alignment; valid until the chunk is released
};

// The sending end of the stream to one peer. One thread at a time.
class ChunkSender {
 public:
  virtual ~ChunkSender() = default;
  // Room for `bytes` (at most Transport::max_chunk_bytes()) to write the payload into; nullptr when
  // there is none now. The doorbell rings when there may be. A second reservation replaces one that
  // was not committed.
  virtual std::byte* try_reserve(std::size_t bytes) = 0;
  // Sends what was reserved last; header.bytes may be less than was reserved.
  virtual void commit(const ChunkHeader& header) = 0;
};

// The receiving end of the stream from one peer. One thread at a time.
class ChunkReceiver {
 public:
  virtual ~ChunkReceiver() = default;
  // The oldest chunk, or the one `ahead` places behind it, if it has come; valid until the next
  // call.
  virtual const Chunk* try_peek(std::uint32_t ahead = 0) = 0;
  // Gives the oldest chunk's room back. Precondition: it was peeked at.
  virtual void release() = 0;
};

// All streams of one rank in one lane. No stream leads from a rank to itself.
class Transport {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Transport() = default;
  virtual ChunkSender& to(int peer) = 0;
  virtual ChunkReceiver& from(int peer) = 0;
  // The largest payload of one chunk. A stream always has room for three of them before anything is
  // released.
  virtual std::size_t max_chunk_bytes() const = 0;

  // Waiting without missing anything: read doorbell(), look at the streams, and if nothing moved
  // call wait() with what was read. It returns when a chunk may have come or room may have been
  // made, when the deadline has passed, or for no reason after some 50 ms; it throws Error when the
  // communicator is broken. Any thread.
  virtual std::uint32_t doorbell() const = 0;
  virtual void wait(std::uint32_t seen, Clock::time_point deadline) = 0;
  // Makes this rank's own wait() return. Any thread.
  virtual void ring_self() = 0;
};

}  // namespace ljtrain::accl
