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
// where that is little, what it sends. Small announcements travel in the entry itself, with 32-bit
// counts; the reader tells them by the first word.
class Announcement {
 public:
  Announcement(const Session& session, std::size_t element, std::size_t limit)
      : session_(session),
        ranks_(static_cast<std::size_t>(session.ranks())),
        element_(element),
        limit_(limit) {}

  void write(const Buffers& buffers) {
    const int rank = session_.rank();
    std::size_t largest = 0;
    std::size_t total = 0;
    for (int peer = 0; peer < session_.ranks(); ++peer) {
      largest = std::max({largest, buffers.send_count(peer), buffers.recv_count(peer)});
      total += peer == rank ? 0 : buffers.send_count(peer) * element_;
    }
    std::byte* head = session_.inline_payload(rank);
    const bool is_short = largest <= std::numeric_limits<std::uint32_t>::max() &&
                          rows_end<std::uint32_t>() + total <= shared_memory::kInlineBytes;
    const std::uint32_t mark = is_short ? 1 : 0;
    std::memcpy(head, &mark, sizeof(mark));
    is_short ? write_rows<std::uint32_t>(head + kMark, buffers)
             : write_rows<std::uint64_t>(session_.one_shot_area(rank), buffers);
    if (!is_short && total > limit_) {
      return;
    }
    std::byte* to = is_short ? head + rows_end<std::uint32_t>()
                             : session_.one_shot_area(rank) + 2 * ranks_ * sizeof(std::uint64_t);
    for (int peer = 0; peer < session_.ranks(); ++peer) {
      const std::size_t bytes = peer == rank ? 0 : buffers.send_count(peer) * element_;
      if (bytes > 0) {
        std::memcpy(to, buffers.send(peer), bytes);
        to += bytes;
      }
    }
  }

  // Elements that `giver` says it sends to `taker`, and that `taker` says it expects from `giver`.
  std::size_t sent(int giver, int taker) const {
    return row(giver, static_cast<std::size_t>(taker));
  }
  std::size_t expected(int taker, int giver) const {
    return row(taker, ranks_ + static_cast<std::size_t>(giver));
  }
  // Bytes for all others.
  std::size_t total(int giver) const {
    std::size_t sum = 0;
    for (int taker = 0; taker < session_.ranks(); ++taker) {
      sum += taker == giver ? 0 : sent(giver, taker) * element_;
    }
    return sum;
  }
  bool holds_data(int giver) const { return is_short(giver) || total(giver) <= limit_; }
  const std::byte* data(int giver, int taker) const {
    const std::byte* from =
        is_short(giver) ? session_.inline_payload(giver) + rows_end<std::uint32_t>()
                        : session_.one_shot_area(giver) + 2 * ranks_ * sizeof(std::uint64_t);
    for (int before = 0; before < taker; ++before) {
      from += before == giver ? 0 : sent(giver, before) * element_;
    }
    return from;
  }

 private:
  static constexpr std::size_t kMark = sizeof(std::uint32_t);
  template <typename Count>
  std::size_t rows_end() const {
    return kMark + 2 * ranks_ * sizeof(Count);
  }
  bool is_short(int owner) const {
    std::uint32_t mark = 0;
    std::memcpy(&mark, session_.inline_payload(owner), sizeof(mark));
    return mark != 0;
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
  std::size_t row(int owner, std::size_t index) const {
    if (is_short(owner)) {
      std::uint32_t count = 0;
      std::memcpy(&count, session_.inline_payload(owner) + kMark + index * sizeof(count),
                  sizeof(count));
      return count;
    }
    std::uint64_t count = 0;
    std::memcpy(&count, session_.one_shot_area(owner) + index * sizeof(count), sizeof(count));
    return count;
  }

  const Session& session_;
  std::size_t ranks_;
  std::size_t element_;
  std::size_t limit_;
};

void check_pairs(Session& session, const Announcement& announcement) {
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

void all_to_all(Session& session, const std::function<bool()>& try_pull) {
  const Buffers buffers(session.collective(), session.rank());
  const int rank = session.rank();
  const std::size_t element = buffers.element();
  const std::size_t row_bytes =
      2 * static_cast<std::size_t>(session.ranks()) * sizeof(std::uint64_t);
  Announcement announcement(
      session, element,
      std::min<std::size_t>(session.tuning().one_shot_bytes, kOneShotArea - row_bytes));
  announcement.write(buffers);
  session.enter();
  session.meet_all();
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
