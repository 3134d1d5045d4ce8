// Binomial trees: log2(ranks) hops from the root to the last rank, pipelined in chunks. all_reduce
// is a reduce to rank 0 and a broadcast of the rounded result, the second a few chunks behind the
// first.
#pragma once

#include "accl/types.h"
#include "algorithm/stream.h"

namespace ljtrain::accl::algorithm {

// broadcast, reduce, all_reduce.
bool tree_supports(const Collective& collective, int ranks);
// Precondition: all ranks call it with operations that agree, which tree_supports().
void tree(const StreamContext& context, const Collective& collective);

}  // namespace ljtrain::accl::algorithm
