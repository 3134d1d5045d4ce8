// The buffers of a collective, share by share, whether they lie side by side or were given as
// parts.
#pragma once

#include <cstddef>

#include "accl/types.h"

namespace ljtrain::accl {

class Buffers {
 public:
  Buffers(const Collective& collective, int rank)
      : call_(collective), rank_(rank), size_(size_of(collective.type)) {}

  // What this rank gives to `peer` (all_to_all, reduce_scatter, scatter on the root).
  const std::byte* send(int peer) const {
    return call_.send_parts.empty() ? static_cast<const std::byte*>(call_.send) + share(peer)
                                    : static_cast<const std::byte*>(
                                          call_.send_parts[static_cast<std::size_t>(peer)].data);
  }
  std::size_t send_count(int peer) const {
    return call_.send_parts.empty() ? call_.count
                                    : call_.send_parts[static_cast<std::size_t>(peer)].count;
  }
  // Where this rank puts what comes from `peer` (all_to_all, all_gather, gather on the root).
  std::byte* recv(int peer) const {
    return call_.recv_parts.empty()
               ? static_cast<std::byte*>(call_.recv) + share(peer)
               : static_cast<std::byte*>(call_.recv_parts[static_cast<std::size_t>(peer)].data);
  }
  std::size_t recv_count(int peer) const {
    return call_.recv_parts.empty() ? call_.count
                                    : call_.recv_parts[static_cast<std::size_t>(peer)].count;
  }
  // The whole of the side that is one share.
  const std::byte* send() const { return static_cast<const std::byte*>(call_.send); }
  std::byte* recv() const { return static_cast<std::byte*>(call_.recv); }
  std::size_t element() const { return size_; }
  int rank() const { return rank_; }

 private:
  std::size_t share(int peer) const { return static_cast<std::size_t>(peer) * call_.count * size_; }

  const Collective& call_;
  int rank_;
  std::size_t size_;
};

}  // namespace ljtrain::accl
