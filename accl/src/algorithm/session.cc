#include "algorithm/session.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "bootstrap/bootstrap.h"

namespace ljtrain::accl {

using shared_memory::Descriptor;
using shared_memory::Lane;
using shared_memory::RankControl;

std::string describe(const Descriptor& descriptor) {
  Collective call;
  call.kind = descriptor.kind;
  call.count = descriptor.count;
  call.type = descriptor.type;
  call.op = descriptor.op;
  call.root = descriptor.root;
  return describe(call) + (descriptor.shares != 0 ? ", uneven shares" : "");
}

// Over what must agree. Multiply-xor over the packed words; not cryptographic, the ranks trust each
// other.
std::uint32_t hash_of(const Descriptor& descriptor) {
  const std::uint64_t words[] = {
      descriptor.sequence, descriptor.count, descriptor.shares,
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(descriptor.root)) << 32) |
          (static_cast<std::uint64_t>(descriptor.kind) << 24) |
          (static_cast<std::uint64_t>(descriptor.type) << 16) |
          static_cast<std::uint64_t>(descriptor.op)};
  std::uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (const std::uint64_t word : words) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  }
  return static_cast<std::uint32_t>(hash);
}

Session::Session(const shared_memory::Segment& segment, Waiting& waiting, int rank, int ranks,
                 std::uint32_t& chunks_before, const Collective& collective,
                 const Descriptor& descriptor, std::chrono::nanoseconds timeout)
    : segment_(segment),
      waiting_(waiting),
      rank_(rank),
      ranks_(ranks),
      chunks_before_(chunks_before),
      collective_(collective),
      descriptor_(descriptor),
      sequence_(static_cast<std::uint32_t>(descriptor.sequence)),
      hash_(hash_of(descriptor)),
      chunk_bytes_(segment.header().tuning.chunk_bytes),
      context_(timeout, [this] { return late(); }) {}

std::byte* Session::one_shot_area(int owner) const {
  return segment_.stage(owner) + (sequence_ % 2) * kOneShotArea;
}

void Session::enter() {
  if (entered_) {
    return;
  }
  entered_ = true;
  RankControl& mine = segment_.control(rank_);
  mine.descriptors[sequence_ % 4] = descriptor_;
  entry(rank_).descriptor_hash = hash_;
  publish(mine, entry(rank_).sequence, sequence_, tuning().light_publish != 0);
}

void Session::meet(int peer) {
  waiting_.until_reached(peer, entry(peer).sequence, sequence_, context_);
  if (entry(peer).descriptor_hash != hash_) [[unlikely]] {
    compare(peer);
  }
}

void Session::meet_all() {
  for (int i = 1; i < ranks_; ++i) {
    meet((rank_ + i) % ranks_);
  }
}

const Descriptor& Session::descriptor_of(int peer) const {
  return segment_.control(peer).descriptors[sequence_ % 4];
}

// The hashes differ: say who called what.
void Session::compare(int peer) {
  waiting_.check();  // somebody else may have found it first
  std::map<std::string, std::vector<int>> calls;
  std::vector<int> about;
  std::vector<int> absent;
  for (int other = 0; other < ranks_; ++other) {
    const std::uint32_t entered = entry(other).sequence.load(std::memory_order_acquire);
    if (other == rank_ || static_cast<std::int32_t>(entered - sequence_) >= 0) {
      calls[describe(descriptor_of(other))].push_back(other);
    } else {
      absent.push_back(other);
    }
  }
  std::string text = fmt::format("the ranks disagree on collective #{}: ", sequence_);
  if (calls.size() == 1) {
    text += fmt::format("rank {} and rank {} call {} with different shares", rank_, peer,
                        calls.begin()->first);
  } else {
    bool first = true;
    for (const auto& [call, ranks] : calls) {
      text += fmt::format("{}rank{} {} call{} {}", first ? "" : "; ", ranks.size() > 1 ? "s" : "",
                          bootstrap::list_of(ranks), ranks.size() > 1 ? "" : "s", call);
      about.insert(about.end(), ranks.begin(), ranks.end());
      first = false;
    }
  }
  if (!absent.empty()) {
    text += fmt::format("; rank{} {} {} not called it yet", absent.size() > 1 ? "s" : "",
                        bootstrap::list_of(absent), absent.size() > 1 ? "have" : "has");
  }
  std::ranges::sort(about);
  throw waiting_.break_communicator(Error(ErrorCode::kInvalidUsage, text, about));
}

Error Session::late() {
  std::string text = fmt::format("collective #{} ({}) timed out on rank {}", sequence_,
                                 describe(collective_), rank_);
  std::vector<int> absent;
  for (int other = 0; other < ranks_; ++other) {
    const std::uint32_t entered = entry(other).sequence.load(std::memory_order_acquire);
    if (other != rank_ && static_cast<std::int32_t>(entered - sequence_) < 0) {
      absent.push_back(other);
    }
  }
  for (const int other : absent) {
    const std::uint32_t completed = segment_.control(other).completed.load();
    text += fmt::format("; {} has not entered it", waiting_.name_peer(other));
    text += completed == 0
                ? ", nor any before it"
                : fmt::format(", its last was #{} ({})", completed,
                              describe(segment_.control(other).descriptors[completed % 4]));
  }
  if (absent.empty()) {
    for (int other = 0; other < ranks_; ++other) {
      if (other != rank_ &&
          static_cast<std::int32_t>(segment_.control(other).completed.load() - sequence_) < 0) {
        absent.push_back(other);
        text += fmt::format("; {} is in it, but does not get on", waiting_.name_peer(other));
      }
    }
  }
  return {ErrorCode::kTimeout, text, absent};
}

std::byte* Session::slot(int owner, std::size_t chunk) const {
  const std::size_t index = (chunks_before_ + chunk) % kSlots;
  return segment_.stage(owner) + 2 * kOneShotArea + index * chunk_bytes_;
}

std::byte* Session::result_slot(int owner, std::size_t chunk) const {
  return slot(owner, chunk) + kSlots * chunk_bytes_;
}

void Session::await_all(Lane lane, std::size_t chunks) {
  for (int i = 1; i < ranks_; ++i) {
    await((rank_ + i) % ranks_, lane, chunks);
  }
}

void Session::await_free(std::size_t chunk) {
  // May reach back into an earlier collective: the difference is meant modulo 2^32.
  const auto consumed = static_cast<std::uint32_t>(chunk + 1 - kSlots);
  for (int i = 1; i < ranks_; ++i) {
    await_count((rank_ + i) % ranks_, Lane::kConsumed, consumed);
  }
}

void Session::pass(Lane lane, std::size_t chunks) {
  RankControl& mine = segment_.control(rank_);
  publish(mine, mine.lanes[lane], chunks_before_ + static_cast<std::uint32_t>(chunks),
          tuning().light_publish != 0);
}

void Session::finish(std::size_t chunks) {
  chunks_before_ += static_cast<std::uint32_t>(chunks);
  RankControl& mine = segment_.control(rank_);
  for (auto& lane : mine.lanes) {
    if (lane.load(std::memory_order_relaxed) != chunks_before_) {
      publish(mine, lane, chunks_before_, tuning().light_publish != 0);
    }
  }
}

std::vector<Scale> Session::scales() {
  std::vector<Scale> all;
  if (collective_.op == ReduceOp::kPremulSum) {
    for (int peer = 0; peer < ranks_; ++peer) {
      all.push_back(peer == rank_ ? collective_.scale : descriptor_of(peer).scale);
    }
  }
  return all;
}

}  // namespace ljtrain::accl
