// What the algorithms over streams (ring, recursive, tree) share: waiting for a chunk or for room,
// and the arithmetic of partial results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "accl/types.h"
#include "communicator/waiting.h"
#include "reduction/reduction.h"
#include "transport/transport.h"

namespace ljtrain::accl::algorithm {

struct StreamContext {
  int rank;
  int ranks;             // at least 2
  Transport& transport;  // the lane of collectives
  Waiting& waiting;
  const WaitContext& wait;
  std::size_t chunk_bytes;  // wished for; what the streams take may be less
};

// Payload of one chunk of partial results. Streams hold more than kChunksAhead of them.
inline constexpr std::size_t kChunksAhead = 4;
std::size_t chunk_bytes(const StreamContext& context);

// Room for a chunk to `peer`; waits for it. Throws what breaks the communicator: a deadline, a peer
// that is gone.
std::byte* reserve(const StreamContext& context, int peer, std::size_t bytes);
void commit(const StreamContext& context, int peer, std::size_t bytes);
void send(const StreamContext& context, int peer, const void* data, std::size_t bytes);
// The next chunk from `peer`, which must have that size; waits for it. Valid until release().
const std::byte* receive(const StreamContext& context, int peer, std::size_t bytes);
void release(const StreamContext& context, int peer);

// Sends `outgoing` bytes to a peer and receives `incoming` from it, chunk by chunk, whichever way
// can move. `take` gets (offset, chunk, bytes). With `in_step` no chunk is taken before the own one
// of that number has gone.
struct Exchange {
  int peer = 0;
  const std::byte* data = nullptr;
  std::size_t outgoing = 0;
  std::size_t incoming = 0;
  std::size_t chunk = 0;
  bool in_step = false;
};
using Take = std::function<void(std::size_t offset, const std::byte* chunk, std::size_t bytes)>;
void exchange(const StreamContext& context, const Exchange& what, const Take& take);

// Partial results travel in the accumulator's type and are rounded once: see reduction.h.
class Partials {
 public:
  Partials(const Collective& collective, int ranks);
  std::size_t element() const { return element_; }          // bytes
  std::size_t accumulator() const { return accumulator_; }  // bytes of an element
  // The type is its own accumulator: results can be summed where they shall lie.
  bool are_exact() const { return exact_; }

  void widen(void* accumulator, const void* source, std::size_t count) const;
  void combine(void* accumulator, const void* other, std::size_t count) const;
  void narrow(void* destination, const void* accumulator, std::size_t count) const;
  // destination = result of own and one other partial result. `scratch`: room for `count`
  // accumulators (unused where are_exact()).
  void finish(void* destination, const void* own, const void* other, std::size_t count,
              void* scratch) const;

 private:
  DataType type_;
  ReduceOp op_;
  Scale scale_;
  int ranks_;
  std::size_t element_;
  std::size_t accumulator_;
  bool exact_;
};

// memcpy that does nothing in place or without bytes.
void copy_unless_same(void* destination, const void* source, std::size_t bytes);

}  // namespace ljtrain::accl::algorithm
