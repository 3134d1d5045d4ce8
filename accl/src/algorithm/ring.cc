#include "algorithm/ring.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace ljtrain::accl::algorithm {
namespace {

// What belongs to one rank: where it is read and where its result goes (nullptr: not here).
struct Block {
  const std::byte* source = nullptr;
  std::byte* result = nullptr;
  std::size_t count = 0;
};

class Ring {
 public:
  Ring(const StreamContext& context, const Collective& collective)
      : context_(context),
        collective_(collective),
        partials_(collective, context.ranks),
        ranks_(context.ranks),
        next_((context.rank + 1) % ranks_),
        previous_((context.rank + ranks_ - 1) % ranks_),
        element_(partials_.element()),
        chunk_(std::max<std::size_t>(1, chunk_bytes(context) / partials_.accumulator())),
        scratch_(partials_.are_exact() ? nullptr
                                       : std::make_unique_for_overwrite<std::byte[]>(
                                             chunk_ * partials_.accumulator())) {}

  void all_reduce();
  void all_gather();
  void reduce_scatter();
  void broadcast();
  void reduce();

 private:
  // The block `behind` places before this rank's own.
  const Block& block(int behind) const {
    return blocks_[static_cast<std::size_t>((context_.rank - behind % ranks_ + ranks_) % ranks_)];
  }
  // Calls f(offset, count) for the chunks of `block` that are in the window, counts in elements.
  template <typename Function>
  void for_chunks(std::size_t window, const Block& block, Function f) const {
    const std::size_t end = std::min(block.count, (window + 1) * kChunksAhead * chunk_);
    for (std::size_t at = window * kChunksAhead * chunk_; at < end; at += chunk_) {
      f(at, std::min(chunk_, end - at));
    }
  }
  std::size_t windows() const {
    std::size_t most = 0;
    for (const Block& one : blocks_) {
      most = std::max(most, one.count);
    }
    return (most + kChunksAhead * chunk_ - 1) / (kChunksAhead * chunk_);
  }
  void reduce_window(std::size_t window, bool pass_result_on);
  void gather_window(std::size_t window);
  void pass_partial(const Block& block, std::size_t at, std::size_t count);

  const StreamContext& context_;
  const Collective& collective_;
  Partials partials_;
  int ranks_;
  int next_;
  int previous_;
  std::size_t element_;
  std::size_t chunk_;  // elements
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<Block> blocks_;
};

// Receives a partial result, adds the own contribution, and sends it on, without a stop in between.
void Ring::pass_partial(const Block& block, std::size_t at, std::size_t count) {
  const std::size_t bytes = count * partials_.accumulator();
  const std::byte* partial = receive(context_, previous_, bytes);
  std::byte* place = reserve(context_, next_, bytes);
  partials_.widen(place, block.source + at * element_, count);
  partials_.combine(place, partial, count);
  commit(context_, next_, bytes);
  release(context_, previous_);
}

// Partial results travel once round the ring: that of a block starts behind its owner and ends at
// it. Every rank puts one window of chunks on the ring and from then on sends one for each that it
// receives; as the streams hold more than a window, the ring cannot fill up.
void Ring::reduce_window(std::size_t window, bool pass_result_on) {
  const Block& first = block(1);
  for_chunks(window, first, [&](std::size_t at, std::size_t count) {
    std::byte* place = reserve(context_, next_, count * partials_.accumulator());
    partials_.widen(place, first.source + at * element_, count);
    commit(context_, next_, count * partials_.accumulator());
  });
  for (int behind = 2; behind < ranks_; ++behind) {
    for_chunks(window, block(behind),
               [&](std::size_t at, std::size_t count) { pass_partial(block(behind), at, count); });
  }
  const Block& own = block(0);
  for_chunks(window, own, [&](std::size_t at, std::size_t count) {
    const std::byte* partial = receive(context_, previous_, count * partials_.accumulator());
    std::byte* result = own.result + at * element_;
    partials_.finish(result, own.source + at * element_, partial, count, scratch_.get());
    release(context_, previous_);
    if (pass_result_on) {
      send(context_, next_, result, count * element_);
    }
  });
}

// Results travel from their owner to the one before it.
void Ring::gather_window(std::size_t window) {
  for (int behind = 1; behind < ranks_; ++behind) {
    const Block& from = block(behind);
    for_chunks(window, from, [&](std::size_t at, std::size_t count) {
      const std::size_t bytes = count * element_;
      const std::byte* chunk = receive(context_, previous_, bytes);
      if (behind + 1 < ranks_) {
        send(context_, next_, chunk, bytes);
      }
      reduction::copy(from.result + at * element_, chunk, bytes, false);
      release(context_, previous_);
    });
  }
}

void Ring::all_reduce() {
  const auto* source = static_cast<const std::byte*>(collective_.send);
  auto* result = static_cast<std::byte*>(collective_.recv);
  const auto n = static_cast<std::size_t>(ranks_);
  std::size_t start = 0;
  for (std::size_t rank = 0; rank < n; ++rank) {
    const std::size_t count = collective_.count / n + (rank < collective_.count % n ? 1 : 0);
    blocks_.push_back({source + start * element_, result + start * element_, count});
    start += count;
  }
  for (std::size_t window = 0; window < windows(); ++window) {
    reduce_window(window, true);
    gather_window(window);
  }
}

void Ring::reduce_scatter() {
  const auto* source = static_cast<const std::byte*>(collective_.send);
  for (std::size_t rank = 0; std::cmp_less(rank, ranks_); ++rank) {
    if (collective_.send_parts.empty()) {
      blocks_.push_back({source + rank * collective_.count * element_, nullptr, collective_.count});
    } else {
      const Part& part = collective_.send_parts[rank];
      blocks_.push_back({static_cast<const std::byte*>(part.data), nullptr, part.count});
    }
  }
  blocks_[static_cast<std::size_t>(context_.rank)].result =
      static_cast<std::byte*>(collective_.recv);
  for (std::size_t window = 0; window < windows(); ++window) {
    reduce_window(window, false);
  }
}

void Ring::all_gather() {
  auto* result = static_cast<std::byte*>(collective_.recv);
  for (std::size_t rank = 0; std::cmp_less(rank, ranks_); ++rank) {
    if (collective_.recv_parts.empty()) {
      blocks_.push_back({nullptr, result + rank * collective_.count * element_, collective_.count});
    } else {
      const Part& part = collective_.recv_parts[rank];
      blocks_.push_back({nullptr, static_cast<std::byte*>(part.data), part.count});
    }
  }
  const Block& own = block(0);
  const auto* source = static_cast<const std::byte*>(collective_.send);
  for (std::size_t window = 0; window < windows(); ++window) {
    for_chunks(window, own, [&](std::size_t at, std::size_t count) {
      send(context_, next_, source + at * element_, count * element_);
      copy_unless_same(own.result + at * element_, source + at * element_, count * element_);
    });
    gather_window(window);
  }
}

void Ring::broadcast() {
  const int root = collective_.root;
  const auto* source = static_cast<const std::byte*>(collective_.send);
  auto* result = static_cast<std::byte*>(collective_.recv);
  for (std::size_t at = 0; at < collective_.count; at += chunk_) {
    const std::size_t bytes = std::min(chunk_, collective_.count - at) * element_;
    if (context_.rank == root) {
      send(context_, next_, source + at * element_, bytes);
      copy_unless_same(result + at * element_, source + at * element_, bytes);
      continue;
    }
    const std::byte* chunk = receive(context_, previous_, bytes);
    if (next_ != root) {
      send(context_, next_, chunk, bytes);
    }
    reduction::copy(result + at * element_, chunk, bytes, false);
    release(context_, previous_);
  }
}

void Ring::reduce() {
  const auto* source = static_cast<const std::byte*>(collective_.send);
  const Block own{source, static_cast<std::byte*>(collective_.recv), collective_.count};
  for (std::size_t at = 0; at < own.count; at += chunk_) {
    const std::size_t count = std::min(chunk_, own.count - at);
    const std::size_t bytes = count * partials_.accumulator();
    if (context_.rank == collective_.root) {
      const std::byte* partial = receive(context_, previous_, bytes);
      partials_.finish(own.result + at * element_, source + at * element_, partial, count,
                       scratch_.get());
      release(context_, previous_);
    } else if (previous_ != collective_.root) {
      pass_partial(own, at, count);
    } else {
      partials_.widen(reserve(context_, next_, bytes), source + at * element_, count);
      commit(context_, next_, bytes);
    }
  }
}

}  // namespace

bool ring_supports(const Collective& collective, int /*ranks*/) {
  switch (collective.kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kAllGather:
    case OperationKind::kReduceScatter:
    case OperationKind::kBroadcast:
    case OperationKind::kReduce:
      return true;
    default:
      return false;
  }
}

void ring(const StreamContext& context, const Collective& collective) {
  Ring run(context, collective);
  switch (collective.kind) {
    case OperationKind::kAllReduce:
      return run.all_reduce();
    case OperationKind::kAllGather:
      return run.all_gather();
    case OperationKind::kReduceScatter:
      return run.reduce_scatter();
    case OperationKind::kBroadcast:
      return run.broadcast();
    case OperationKind::kReduce:
      return run.reduce();
    default:
      throw error(ErrorCode::kInternal, "no ring for {}", name_of(collective.kind));
  }
}

}  // namespace ljtrain::accl::algorithm
