#include "algorithm/tree.h"

#include <algorithm>
#include <memory>
#include <ranges>
#include <vector>

namespace ljtrain::accl::algorithm {
namespace {

class Tree {
 public:
  Tree(const StreamContext& context, const Collective& collective, int root);
  void broadcast();
  void reduce();
  void all_reduce();

 private:
  std::size_t chunks() const { return (collective_.count + chunk_ - 1) / chunk_; }
  std::size_t count(std::size_t chunk) const {
    return std::min(chunk_, collective_.count - chunk * chunk_);
  }
  const std::byte* source(std::size_t chunk) const {
    return static_cast<const std::byte*>(collective_.send) + chunk * chunk_ * partials_.element();
  }
  std::byte* result(std::size_t chunk) const {
    return static_cast<std::byte*>(collective_.recv) + chunk * chunk_ * partials_.element();
  }
  bool is_root() const { return parent_ < 0; }

  void up(std::size_t chunk);
  void down(std::size_t chunk, const std::byte* from_root);

  const StreamContext& context_;
  const Collective& collective_;
  Partials partials_;
  std::size_t chunk_;          // elements
  int parent_ = -1;            // none
  std::vector<int> children_;  // the smallest subtree first
  std::unique_ptr<std::byte[]> scratch_;
};

Tree::Tree(const StreamContext& context, const Collective& collective, int root)
    : context_(context),
      collective_(collective),
      partials_(collective, context.ranks),
      chunk_(std::max<std::size_t>(1, chunk_bytes(context) / partials_.accumulator())) {
  const int ranks = context.ranks;
  const int own = (context.rank - root + ranks) % ranks;
  if (own != 0) {
    parent_ = ((own & (own - 1)) + root) % ranks;
  }
  for (int bit = 1; (own & bit) == 0 && own + bit < ranks; bit *= 2) {
    children_.push_back((own + bit + root) % ranks);
  }
  if (is_root() && !partials_.are_exact()) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(std::min(chunk_, collective.count) *
                                                           partials_.accumulator());
  }
}

// The sum of this subtree goes to the parent; on the root, rounded, into the result.
void Tree::up(std::size_t chunk) {
  const std::size_t bytes = count(chunk) * partials_.accumulator();
  std::byte* sum = !is_root()              ? reserve(context_, parent_, bytes)
                   : partials_.are_exact() ? result(chunk)
                                           : scratch_.get();
  partials_.widen(sum, source(chunk), count(chunk));
  for (const int child : children_) {
    partials_.combine(sum, receive(context_, child, bytes), count(chunk));
    release(context_, child);
  }
  if (is_root()) {
    partials_.narrow(result(chunk), sum, count(chunk));
  } else {
    commit(context_, parent_, bytes);
  }
}

void Tree::down(std::size_t chunk, const std::byte* from_root) {
  const std::size_t bytes = count(chunk) * partials_.element();
  const std::byte* data = is_root() ? from_root : receive(context_, parent_, bytes);
  for (const int child : children_ | std::views::reverse) {
    send(context_, child, data, bytes);
  }
  copy_unless_same(result(chunk), data, bytes);
  if (!is_root()) {
    release(context_, parent_);
  }
}

void Tree::broadcast() {
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    down(chunk, is_root() ? source(chunk) : nullptr);
  }
}

void Tree::reduce() {
  for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
    up(chunk);
  }
}

// A rank that waits for room towards its parent is at most kChunksAhead chunks ahead of what came
// down: the parent cannot be waiting for it in turn.
void Tree::all_reduce() {
  for (std::size_t step = 0; step < chunks() + kChunksAhead; ++step) {
    if (step < chunks()) {
      up(step);
    }
    if (step >= kChunksAhead) {
      down(step - kChunksAhead, result(step - kChunksAhead));
    }
  }
}

}  // namespace

bool tree_supports(const Collective& collective, int /*ranks*/) {
  return collective.kind == OperationKind::kBroadcast ||
         collective.kind == OperationKind::kReduce || collective.kind == OperationKind::kAllReduce;
}

void tree(const StreamContext& context, const Collective& collective) {
  const bool has_root = collective.kind != OperationKind::kAllReduce;
  Tree run(context, collective, has_root ? collective.root : 0);
  switch (collective.kind) {
    case OperationKind::kBroadcast:
      return run.broadcast();
    case OperationKind::kReduce:
      return run.reduce();
    case OperationKind::kAllReduce:
      return run.all_reduce();
    default:
      throw error(ErrorCode::kInternal, "no tree for {}", name_of(collective.kind));
  }
}

}  // namespace ljtrain::accl::algorithm
