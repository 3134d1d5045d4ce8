#include "algorithm/recursive.h"

#include <algorithm>
#include <bit>
#include <memory>

namespace ljtrain::accl::algorithm {
namespace {

class Recursive {
 public:
  Recursive(const StreamContext& context, const Collective& collective);
  void doubling();
  void halving_doubling();

 private:
  // Ranks 0..2*surplus-1 work in pairs of which only the odd one goes on.
  bool sits_out() const { return context_.rank < 2 * surplus_ && context_.rank % 2 == 0; }
  // The number of a rank among those that go on, and back.
  int position() const {
    return context_.rank < 2 * surplus_ ? context_.rank / 2 : context_.rank - surplus_;
  }
  int rank_at(int position) const {
    return position < surplus_ ? 2 * position + 1 : position + surplus_;
  }
  // First element of the share of a position.
  std::size_t start(int position) const {
    return count_ * static_cast<std::size_t>(position) / static_cast<std::size_t>(powers_);
  }

  bool hand_over();
  void hand_back();
  void combine_with(int peer);
  void halve();
  void double_up();

  const StreamContext& context_;
  Partials partials_;
  std::size_t count_;
  std::byte* result_;
  int powers_;         // the largest power of two that is not more than the ranks
  int surplus_;        // ranks beyond it
  std::size_t chunk_;  // elements
  std::unique_ptr<std::byte[]> own_accumulator_;
  std::byte* accumulator_;
};

Recursive::Recursive(const StreamContext& context, const Collective& collective)
    : context_(context),
      partials_(collective, context.ranks),
      count_(collective.count),
      result_(static_cast<std::byte*>(collective.recv)),
      powers_(static_cast<int>(std::bit_floor(static_cast<unsigned>(context.ranks)))),
      surplus_(context.ranks - powers_),
      chunk_(std::max<std::size_t>(1, chunk_bytes(context) / partials_.accumulator())) {
  if (!partials_.are_exact()) {
    own_accumulator_ =
        std::make_unique_for_overwrite<std::byte[]>(count_ * partials_.accumulator());
  }
  accumulator_ = partials_.are_exact() ? result_ : own_accumulator_.get();
  partials_.widen(accumulator_, collective.send, count_);
}

// True when this rank has nothing more to do than to wait for the result.
bool Recursive::hand_over() {
  if (context_.rank >= 2 * surplus_) {
    return false;
  }
  const std::size_t bytes = count_ * partials_.accumulator();
  Exchange what{.peer = context_.rank ^ 1, .chunk = chunk_ * partials_.accumulator()};
  if (sits_out()) {
    what.data = accumulator_;
    what.outgoing = bytes;
  } else {
    what.incoming = bytes;
  }
  exchange(context_, what, [&](std::size_t at, const std::byte* chunk, std::size_t length) {
    partials_.combine(accumulator_ + at, chunk, length / partials_.accumulator());
  });
  return sits_out();
}

void Recursive::hand_back() {
  if (context_.rank >= 2 * surplus_) {
    return;
  }
  const std::size_t bytes = count_ * partials_.element();
  Exchange what{.peer = context_.rank ^ 1, .chunk = chunk_ * partials_.element()};
  if (sits_out()) {
    what.incoming = bytes;
  } else {
    what.data = result_;
    what.outgoing = bytes;
  }
  exchange(context_, what, [&](std::size_t at, const std::byte* chunk, std::size_t length) {
    reduction::copy(result_ + at, chunk, length, false);
  });
}

// Both sides get the same bits, as combine() commutes in all of them (it knows one NaN and orders
// the zeros).
void Recursive::combine_with(int peer) {
  const std::size_t bytes = count_ * partials_.accumulator();
  exchange(context_,
           {.peer = peer,
            .data = accumulator_,
            .outgoing = bytes,
            .incoming = bytes,
            .chunk = chunk_ * partials_.accumulator(),
            .in_step = true},
           [&](std::size_t at, const std::byte* chunk, std::size_t length) {
             partials_.combine(accumulator_ + at, chunk, length / partials_.accumulator());
           });
}

void Recursive::doubling() {
  if (!hand_over()) {
    for (int distance = 1; distance < powers_; distance *= 2) {
      combine_with(rank_at(position() ^ distance));
    }
    // Everybody rounds the same bits in the same way.
    partials_.narrow(result_, accumulator_, count_);
  }
  hand_back();
}

// Ends with the sum of the own share.
void Recursive::halve() {
  int first = 0;
  for (int half = powers_ / 2; half >= 1; half /= 2) {
    const bool is_lower = (position() & half) == 0;
    const int kept = is_lower ? first : first + half;
    const int given = is_lower ? first + half : first;
    const std::size_t size = partials_.accumulator();
    std::byte* mine = accumulator_ + start(kept) * size;
    exchange(context_,
             {.peer = rank_at(position() ^ half),
              .data = accumulator_ + start(given) * size,
              .outgoing = (start(given + half) - start(given)) * size,
              .incoming = (start(kept + half) - start(kept)) * size,
              .chunk = chunk_ * size},
             [&](std::size_t at, const std::byte* chunk, std::size_t length) {
               partials_.combine(mine + at, chunk, length / size);
             });
    first = kept;
  }
}

void Recursive::double_up() {
  for (int size = 1; size < powers_; size *= 2) {
    const int mine = position() / size * size;
    const int theirs = mine ^ size;
    const std::size_t element = partials_.element();
    std::byte* place = result_ + start(theirs) * element;
    exchange(context_,
             {.peer = rank_at(position() ^ size),
              .data = result_ + start(mine) * element,
              .outgoing = (start(mine + size) - start(mine)) * element,
              .incoming = (start(theirs + size) - start(theirs)) * element,
              .chunk = chunk_ * element},
             [&](std::size_t at, const std::byte* chunk, std::size_t length) {
               reduction::copy(place + at, chunk, length, false);
             });
  }
}

void Recursive::halving_doubling() {
  if (!hand_over()) {
    halve();
    const std::size_t first = start(position());
    partials_.narrow(result_ + first * partials_.element(),
                     accumulator_ + first * partials_.accumulator(), start(position() + 1) - first);
    double_up();
  }
  hand_back();
}

}  // namespace

bool recursive_supports(const Collective& collective, int /*ranks*/) {
  return collective.kind == OperationKind::kAllReduce;
}

void recursive_doubling(const StreamContext& context, const Collective& collective) {
  Recursive(context, collective).doubling();
}

void halving_doubling(const StreamContext& context, const Collective& collective) {
  Recursive(context, collective).halving_doubling();
}

}  // namespace ljtrain::accl::algorithm
