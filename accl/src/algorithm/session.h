// One collective of one rank, from its announcement to its end: what every algorithm on shared
// memory stands on.
//
// A rank announces a collective by its entry (descriptor, hash, small payload). It meets() each
// peer: waits for the peer's entry and compares. Nobody leaves a collective before it has met all,
// so a disagreement is an error on every rank, and the announcement before last may be overwritten.
// Larger data goes through the stages: a ring of slots for each rank, which the owner fills and its
// peers read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "accl/types.h"
#include "communicator/waiting.h"
#include "transport/shared_memory/segment.h"

namespace ljtrain::accl {

inline constexpr std::size_t kSlots = 4;
// Of the one-step algorithms: one area for each parity of the sequence number.
inline constexpr std::size_t kOneShotArea = 64 << 10;

// Bytes of one rank's stage: two one-shot areas, the slots, and as many slots for results.
constexpr std::size_t stage_bytes_for(std::size_t chunk_bytes) {
  return 2 * kOneShotArea + 2 * kSlots * chunk_bytes;
}

class Session {
 public:
  Session(const shared_memory::Segment& segment, Waiting& waiting, int rank, int ranks,
          std::uint32_t& chunks_before, const Collective& collective,
          const shared_memory::Descriptor& descriptor, std::chrono::nanoseconds timeout);

  // Tells the peers where this rank's buffers lie; before enter(), where they may read there.
  void place(const shared_memory::BufferPlaces& places) {
    segment_.control(rank_).places[sequence_ % 4] = places;
  }
  // Announces the collective, with what lies in inline_payload() and one_shot_area(). A second call
  // does nothing.
  void enter();
  std::byte* inline_payload(int owner) const { return entry(owner).payload; }
  std::byte* one_shot_area(int owner) const;

  // Waits for the peer to enter. Throws when it called something else.
  void meet(int peer);
  void meet_all();
  const shared_memory::Descriptor& descriptor_of(int peer) const;
  // Of a peer that has called place().
  const shared_memory::BufferPlaces& places_of(int peer) const {
    return segment_.control(peer).places[sequence_ % 4];
  }

  // ---- slots: `chunk` counts from 0 within this collective ----
  // Every rank passes every chunk in every lane, whether it has something to do with it or not.
  // kConsumed means: done with what peers staged and with their results; it frees both slots.
  std::size_t chunk_bytes() const { return chunk_bytes_; }
  std::byte* slot(int owner, std::size_t chunk) const;
  std::byte* result_slot(int owner, std::size_t chunk) const;
  void await(int peer, shared_memory::Lane lane, std::size_t chunks) {
    await_count(peer, lane, static_cast<std::uint32_t>(chunks));
  }
  void await_all(shared_memory::Lane lane, std::size_t chunks);
  // Until all peers are done with what this rank's slots of `chunk` held before.
  void await_free(std::size_t chunk);
  // "I have passed `chunks` chunks of this collective in this lane."
  void pass(shared_memory::Lane lane, std::size_t chunks);
  // At the end of a collective that went through `chunks` chunks.
  void finish(std::size_t chunks);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const Collective& collective() const { return collective_; }
  const shared_memory::Tuning& tuning() const { return segment_.header().tuning; }
  Waiting& waiting() { return waiting_; }
  const WaitContext& wait_context() const { return context_; }
  const shared_memory::Segment& segment() const { return segment_; }
  // Large results are written past the caches.
  bool is_streaming(std::size_t bytes) const { return bytes >= tuning().streaming_bytes; }
  std::vector<Scale> scales();

 private:
  shared_memory::RankControl::Entry& entry(int owner) const {
    return segment_.control(owner).entries[sequence_ % 2];
  }
  void await_count(int peer, shared_memory::Lane lane, std::uint32_t chunks) {
    waiting_.until_reached(peer, segment_.control(peer).lanes[lane], chunks_before_ + chunks,
                           context_);
  }
  void compare(int peer);
  Error late();

  const shared_memory::Segment& segment_;
  Waiting& waiting_;
  int rank_;
  int ranks_;
  std::uint32_t& chunks_before_;  // over the life of the communicator; all ranks count alike
  const Collective& collective_;
  const shared_memory::Descriptor& descriptor_;
  std::uint32_t sequence_;
  std::uint32_t hash_;
  std::size_t chunk_bytes_;
  WaitContext context_;
  bool entered_ = false;
};

// "all_reduce of 4 float32, sum", from what a rank has announced.
std::string describe(const shared_memory::Descriptor& descriptor);
std::uint32_t hash_of(const shared_memory::Descriptor& descriptor);

}  // namespace ljtrain::accl
