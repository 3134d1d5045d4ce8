// The memory that the ranks of one communicator share: one memfd, created by the rank that
// coordinates the bootstrap and passed to the others over a Unix socket. Everything in it is
// position-independent and valid when zero.
//
//   SegmentHeader | RankControl[ranks] | stage of rank 0 | stage of rank 1 | ... | channels (see
//   channel.h)
//
// Stages and channels are only touched by the algorithms that use them, so that untouched pages
// cost nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "accl/error.h"
#include "accl/types.h"
#include "base/unique_fd.h"

namespace ljtrain::accl::shared_memory {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::uint32_t kLayoutVersion = 2;

// What one rank says about the collective it is in, for the others to compare with theirs.
struct Descriptor {
  std::uint64_t sequence;  // the rank's n-th collective, from 1
  std::uint64_t count;
  std::uint64_t
      shares;  // hash of the counts of all parts that must agree on every rank; 0 without parts
  std::int32_t root;
  OperationKind kind;
  DataType type;
  ReduceOp op;
  std::uint8_t has_parts;
  // From here on, what may differ between ranks.
  std::uint8_t in_place;
  // kPremulSum: this rank's factor.
  Scale scale;
};

// Where a rank's buffers lie: in its process, and in memory of Communicator::allocate() the
// allocation's id (0: in none) and the offset in it. Written only for collectives whose peers may
// read there.
struct BufferPlaces {
  std::uint64_t send_address;
  std::uint64_t recv_address;
  std::uint64_t send_allocation;
  std::uint64_t send_offset;
  std::uint64_t recv_allocation;
  std::uint64_t recv_offset;
  // Where a peer finds them: /proc/PID/fd/N, and the allocation's size.
  std::int32_t send_descriptor;
  std::int32_t recv_descriptor;
  std::uint64_t send_allocation_bytes;
  std::uint64_t recv_allocation_bytes;
  // How many allocations the owner has freed so far: when it grows, peers drop their mappings.
  std::uint64_t deallocations;
};

enum class RankState : std::uint32_t { kAbsent = 0, kJoined = 1, kLeft = 2, kAborted = 3 };

// Counters that tell how far a rank is with chunks. They count up over the life of the communicator
// and wrap.
enum Lane : std::uint8_t { kStaged, kConsumed, kResult, kLanes };

// Payload that travels in the announcement of a collective itself.
inline constexpr std::size_t kInlineBytes = 120;

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): lines apart by who writes
struct alignas(kCacheLine) RankControl {
  // Written by the owner only; peers poll it.
  std::atomic<std::uint32_t> lanes[kLanes];
  // "I have entered collective number `sequence`", with a small payload in the same cache line. Two
  // of them, used in turn: no rank leaves a collective before all have entered it, so the one
  // before last is free again.
  struct alignas(kCacheLine) Entry {
    std::atomic<std::uint32_t> sequence;
    std::uint32_t descriptor_hash;
    std::byte payload[kInlineBytes];
  } entries[2];
  // How many peers sleep on any word of this rank's lanes or entries.
  alignas(kCacheLine) std::atomic<std::uint32_t> sleepers;
  // Rung by peers when they push to, or pop from, one of this rank's channels. The owner sleeps on
  // it.
  alignas(kCacheLine) std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> doorbell_sleeper;  // 1 while the owner sleeps on it
  // Who this is; written once, before the bootstrap ends.
  alignas(kCacheLine) std::atomic<RankState> state;
  std::int32_t pid;
  std::uint64_t process_start_time;  // field 22 of /proc/PID/stat: tells a reused pid
  // Set by the owner, for good, when it may not map a peer's allocation, or read a peer's memory.
  std::atomic<std::uint32_t> cannot_map;
  std::atomic<std::uint32_t> cannot_read;
  // The last collective that this rank has finished: it may then exit without harm to those still
  // in it.
  std::atomic<std::uint32_t> completed;
  // Written before the entry that announces it; [sequence % 4].
  alignas(kCacheLine) Descriptor descriptors[4];
  alignas(kCacheLine) BufferPlaces places[4];
};

// Decided by rank 0 when the communicator is made, so that all ranks choose alike. See tuner/.
struct Tuning {
  std::uint32_t cores;                                // that the ranks may run on, together
  std::uint32_t oversubscribed;                       // 1: more ranks than cores
  std::uint32_t deterministic;                        // ACCL_DETERMINISTIC
  std::uint32_t allowed_algorithms[kOperationKinds];  // NCCL_ALGO; see tuner/tuner.h
  std::uint32_t light_publish;    // 1: every rank can use membarrier (communicator/waiting.h)
  double hand_over_s;             // one rank's store seen by another
  double line_s;                  // looking at a cache line that another core has written
  double copy_s_per_byte;         // within the caches
  double memory_copy_s_per_byte;  // beyond them, all ranks at once
  double reduce_s_per_byte;
  double process_read_s_per_byte;  // process_vm_readv; 0: not allowed here
  std::uint64_t streaming_bytes;   // results from this size on are written past the caches
  std::uint64_t chunk_bytes;       // of one stage slot
  std::uint64_t one_shot_bytes;    // the largest payload of the one-step algorithms
};

struct alignas(4096) SegmentHeader {
  std::uint64_t magic;
  std::uint32_t layout_version;
  std::uint32_t ranks;
  std::uint64_t bytes;  // of the whole segment
  std::uint64_t stage_offset;
  std::uint64_t stage_bytes;  // of each rank
  std::uint64_t channel_offset;
  std::uint64_t channel_bytes;  // of each channel
  Tuning tuning;
  // 0: whole. 1: somebody is writing the text. 2: broken, text valid. Only the first error is kept.
  alignas(kCacheLine) std::atomic<std::uint32_t> broken;
  ErrorCode broken_code;
  std::int32_t broken_by;  // the rank that noticed
  std::int32_t broken_ranks_count;
  std::int32_t broken_ranks[16];
  char broken_text[2048];
};

// The segment, mapped. Unmapped when the last Segment of this process drops it; the memory itself
// lives until the last process does. Ranks that are threads of one process share one mapping.
class Segment {
 public:
  // `stage_bytes` for each rank and `channel_bytes` for each of 2 * ranks * ranks channels (rounded
  // up to pages). Throws kSystem.
  static Segment create(int ranks, std::size_t stage_bytes, std::size_t channel_bytes);
  // Maps what create() made in another rank. Takes the descriptor over. Throws kInternal on another
  // layout.
  static Segment map(base::UniqueFd memory);

  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  RankControl& control(int rank) const;
  std::byte* stage(int rank) const;
  // lane 0: algorithms of collectives; lane 1: messages.
  std::byte* channel(int lane, int from, int to) const;
  int memory_fd() const { return memory_.get(); }
  // After the bootstrap nobody needs the descriptor any more: the mapping keeps the memory.
  void close_memory_fd() { memory_.reset(); }

 private:
  class Mapping;
  Segment(base::UniqueFd memory, std::size_t bytes);
  base::UniqueFd memory_;
  std::shared_ptr<Mapping> mapping_;
  std::byte* base_;
};

}  // namespace ljtrain::accl::shared_memory
