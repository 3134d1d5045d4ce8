// All-reduce in log2(ranks) steps between pairs of ranks. (Thakur, Rabenseifner and Gropp,
// "Optimization of collective communication operations in MPICH", 2005.) Where the number of ranks
// is no power of two, the ranks too many first hand their contribution to a neighbour and get the
// result from it at the end.
#pragma once

#include "accl/types.h"
#include "algorithm/stream.h"

namespace ljtrain::accl::algorithm {

// Both: all_reduce, any number of ranks.
bool recursive_supports(const Collective& collective, int ranks);

// Every pair exchanges all it has: the fewest steps, for small operations.
void recursive_doubling(const StreamContext& context, const Collective& collective);
// Pairs halve what they reduce, then double what they gather (Rabenseifner): each byte moves about
// twice.
void halving_doubling(const StreamContext& context, const Collective& collective);

}  // namespace ljtrain::accl::algorithm
