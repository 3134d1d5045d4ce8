// Each rank hands chunks to the next and takes them from the one before: every byte crosses each
// link once, which is what large operations need. (Patarasuk and Yuan, "Bandwidth optimal
// all-reduce algorithms for clusters of workstations", 2009.) broadcast and reduce run along the
// ring as a chain.
#pragma once

#include "accl/types.h"
#include "algorithm/stream.h"

namespace ljtrain::accl::algorithm {

// all_reduce, all_gather and reduce_scatter (both also with parts), broadcast, reduce. With parts,
// all ranks must hold the counts of all of them.
bool ring_supports(const Collective& collective, int ranks);
// Precondition: all ranks call it with operations that agree, which ring_supports().
void ring(const StreamContext& context, const Collective& collective);

}  // namespace ljtrain::accl::algorithm
