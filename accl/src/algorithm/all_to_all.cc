#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "algorithm/buffers.h"
#include "algorithm/direct.h"
#include "algorithm/exchange.h"

namespace ljtrain::accl::direct {
namespace {

// What each rank announces: how many elements it sends to each rank and expects from each; and,
// where that is little, what it sends. The first word says in which form:
//   even   one count for all, in the word itself
//   short  a row of 32-bit counts each way, in the entry, followed by the data
//   long   the same with 64-bit counts, in the area of the one-step algorithms
class Announcement {
 public:
  Announcement(const Session& session, std::size_t element, std::size_t limit)
      : session_(session),
        ranks_(static_cast<std::size_t>(session.ranks())),
        element_(element),
        limit_(limit) {}

  void write(const Buffers& buffers) {
    const int rank = session_.rank();
    const Collective& call = session_.collective();
    std::byte* head = session_.inline_payload(rank);
    if (call.send_parts.empty() && call.recv_parts.empty() && call.count <= kMostEven) {
      const std::uint32_t word = kEven | (static_cast<std::uint32_t>(call.count) << kFormBits);
      std::memcpy(head, &word, sizeof(word));
      if (holds_data(rank)) {
        write_data(const_cast<std::byte*>(data_of(rank)), buffers);
      }
      return;
    }
    std::size_t largest = 0;
    std::size_t sum = 0;
    for (int peer = 0; peer < session_.ranks(); ++peer) {
      largest = std::max({largest, buffers.send_count(peer), buffers.recv_count(peer)});
      sum += peer == rank ? 0 : buffers.send_count(peer) * element_;
    }
    const bool is_short = largest <= std::numeric_limits<std::uint32_t>::max() &&
                          rows_end<std::uint32_t>() + sum <= shared_memory::kInlineBytes;
    const std::uint32_t word = is_short ? kShort : kLong;
    std::memcpy(head, &word, sizeof(word));
    is_short ? write_rows<std::uint32_t>(head + kWord, buffers)
             : write_rows<std::uint64_t>(session_.one_shot_area(rank), buffers);
    if (is_short || sum <= limit_) {
      write_data(const_cast<std::byte*>(data_of(rank)), buffers);
    }
  }

  // Elements that `giver` says it sends to `taker`, and that `taker` says it expects from `giver`.
  std::size_t sent(int giver, int taker) const {
    return count(giver, static_cast<std::size_t>(taker));
  }
  std::size_t expected(int taker, int giver) const {
    return count(taker, ranks_ + static_cast<std::size_t>(giver));
  }
  // Whether all ranks exchange the same count with all others.
  bool is_even() const {
    for (int peer = 0; peer < session_.ranks(); ++peer) {
      if (form(peer) != kEven || word(peer) != word(session_.rank())) {
        return false;
      }
    }
    return true;
  }
  bool holds_data(int giver) const { return form(giver) == kShort || total(giver) <= limit_; }
  // Where is_even() and holds_data(): takes what the others have for this rank.
  void take_even(const Buffers& buffers) const {
    const std::size_t bytes = session_.collective().count * element_;
    if (bytes == 0) {
      return;
    }
    const int rank = session_.rank();
    const bool is_inline = is_even_inline((ranks_ - 1) * bytes);
    for (int giver = 0; giver < session_.ranks(); ++giver) {
      const std::byte* from = buffers.send(rank);
      if (giver != rank) {
        from = is_inline ? session_.inline_payload(giver) + kWord : session_.one_shot_area(giver);
        from += static_cast<std::size_t>(rank - (rank > giver ? 1 : 0)) * bytes;
      }
      if (from != buffers.recv(giver)) {
        std::memcpy(buffers.recv(giver), from, bytes);
      }
    }
  }
  const std::byte* data(int giver, int taker) const {
    const std::byte* from = data_of(giver);
    if (form(giver) == kEven) {
      return from + static_cast<std::size_t>(taker - (taker > giver ? 1 : 0)) * sent(giver, taker) *
                        element_;
    }
    for (int before = 0; before < taker; ++before) {
      from += before == giver ? 0 : sent(giver, before) * element_;
    }
    return from;
  }

 private:
  static constexpr std::uint32_t kLong = 0;
  static constexpr std::uint32_t kShort = 1;
  static constexpr std::uint32_t kEven = 2;
  static constexpr unsigned kFormBits = 2;
  static constexpr std::size_t kMostEven = std::numeric_limits<std::uint32_t>::max() >> kFormBits;
  static constexpr std::size_t kWord = sizeof(std::uint32_t);

  static bool is_even_inline(std::size_t total) {
    return kWord + total <= shared_memory::kInlineBytes;
  }
  std::uint32_t word(int owner) const {
    std::uint32_t value = 0;
    std::memcpy(&value, session_.inline_payload(owner), sizeof(value));
    return value;
  }
  std::uint32_t form(int owner) const { return word(owner) & ((1U << kFormBits) - 1); }
  // Bytes for all others.
  std::size_t total(int giver) const {
    if (form(giver) == kEven) {
      return (ranks_ - 1) * (word(giver) >> kFormBits) * element_;
    }
    std::size_t sum = 0;
    for (int taker = 0; taker < session_.ranks(); ++taker) {
      sum += taker == giver ? 0 : sent(giver, taker) * element_;
    }
    return sum;
  }
  template <typename Count>
  std::size_t rows_end() const {
    return kWord + 2 * ranks_ * sizeof(Count);
  }
  template <typename Count>
  void write_rows(std::byte* to, const Buffers& buffers) const {
    for (int side = 0; side < 2; ++side) {
      for (int peer = 0; peer < session_.ranks(); ++peer, to += sizeof(Count)) {
        const auto count =
            static_cast<Count>(side == 0 ? buffers.send_count(peer) : buffers.recv_count(peer));
        std::memcpy(to, &count, sizeof(count));
      }
    }
  }
  // Where the data of an owner begin that has little.
  const std::byte* data_of(int owner) const {
    const std::byte* head = session_.inline_payload(owner);
    switch (form(owner)) {
      case kEven:
        return is_even_inline(total(owner)) ? head + kWord : session_.one_shot_area(owner);
      case kShort:
        return head + rows_end<std::uint32_t>();
      default:
        return session_.one_shot_area(owner) + 2 * ranks_ * sizeof(std::uint64_t);
    }
  }
  void write_data(std::byte* to, const Buffers& buffers) const {
    for (int peer = 0; peer < session_.ranks(); ++peer) {
      const std::size_t bytes = peer == session_.rank() ? 0 : buffers.send_count(peer) * element_;
      if (bytes > 0) {
        std::memcpy(to, buffers.send(peer), bytes);
        to += bytes;
      }
    }
  }
  // The `index`-th count of an owner: what it sends to each rank, then what it expects from each.
  std::size_t count(int owner, std::size_t index) const {
    switch (form(owner)) {
      case kEven:
        return word(owner) >> kFormBits;
      case kShort: {
        std::uint32_t value = 0;
        std::memcpy(&value, session_.inline_payload(owner) + kWord + index * sizeof(value),
                    sizeof(value));
        return value;
      }
      default: {
        std::uint64_t value = 0;
        std::memcpy(&value, session_.one_shot_area(owner) + index * sizeof(value), sizeof(value));
        return value;
      }
    }
  }

  const Session& session_;
  std::size_t ranks_;
  std::size_t element_;
  std::size_t limit_;
};

void check_pairs(Session& session, const Announcement& announcement) {
  if (announcement.is_even()) {
    return;
  }
  for (int giver = 0; giver < session.ranks(); ++giver) {
    for (int taker = 0; taker < session.ranks(); ++taker) {
      const std::size_t sent = announcement.sent(giver, taker);
      const std::size_t expected = announcement.expected(taker, giver);
      if (sent != expected) {
        throw session.waiting().break_communicator(
            Error(ErrorCode::kInvalidUsage,
                  fmt::format("all_to_all: rank {} sends {} elements to rank {}, which expects {}",
                              giver, sent, taker, expected),
                  {giver, taker}));
      }
    }
  }
}

}  // namespace

void all_to_all(Session& session, const std::function<void()>& place,
                const std::function<bool()>& try_pull) {
  const Buffers buffers(session.collective(), session.rank());
  const int rank = session.rank();
  const std::size_t element = buffers.element();
  const std::size_t row_bytes =
      2 * static_cast<std::size_t>(session.ranks()) * sizeof(std::uint64_t);
  Announcement announcement(
      session, element,
      std::min<std::size_t>(session.tuning().one_shot_bytes, kOneShotArea - row_bytes));
  announcement.write(buffers);
  // Peers may pull where all shares are even and large.
  if (!announcement.holds_data(rank)) {
    place();
  }
  session.enter();
  session.meet_all();
  if (announcement.is_even() && announcement.holds_data(rank)) {  // small and common: in a hurry
    announcement.take_even(buffers);
    return;
  }
  check_pairs(session, announcement);

  // What goes through the stages: all that large givers have for others.
  std::size_t longest = 0;
  std::vector<int> large;
  for (int giver = 0; giver < session.ranks(); ++giver) {
    if (announcement.holds_data(giver)) {
      continue;
    }
    for (int taker = 0; taker < session.ranks(); ++taker) {
      longest = std::max(longest, taker == giver ? 0 : announcement.sent(giver, taker));
    }
    if (giver != rank) {
      large.push_back(giver);
    }
  }
  if (longest > 0 && try_pull()) {
    return;
  }
  for (int giver = 0; giver < session.ranks(); ++giver) {
    const std::size_t bytes = buffers.recv_count(giver) * element;
    if (bytes == 0 || (giver != rank && !announcement.holds_data(giver))) {
      continue;
    }
    const std::byte* from = giver == rank ? buffers.send(rank) : announcement.data(giver, rank);
    if (from != buffers.recv(giver)) {
      std::memcpy(buffers.recv(giver), from, bytes);
    }
  }
  if (longest > 0) {
    // Beginning with the next rank, so that not all read the same stage at once.
    std::ranges::rotate(large,
                        std::ranges::find_if(large, [&](int giver) { return giver > rank; }));
    exchange(session, !announcement.holds_data(rank), large, longest,
             [&](int giver, int taker) { return announcement.sent(giver, taker); });
  }
}

}  // namespace ljtrain::accl::direct
