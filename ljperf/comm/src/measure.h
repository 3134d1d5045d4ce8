// The measuring itself: blocks of all libraries in random order, one operation and size after the
// other.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "comm/options.h"
#include "comm/results.h"
#include "peer_group.h"

namespace ljtrain::ljperf {

struct Case {
  ljperf_comm::Op op{};
  ljperf_comm::Type dtype{};
  std::uint64_t bytes = 0;
  int ranks = 0;
};

// Whether the library has the operation for that type in any form.
bool supports_any(const Library& library, ljperf_comm::Op op, ljperf_comm::Type dtype);

// Measures one operation of one size with every library that has it. A round is one block of each
// library, in an order that is drawn anew; a block is a warm-up, a barrier, and as many operations
// as fill --min-time. Throws GroupFailure, Interrupted.
std::vector<CommRow> measure(const Case& subject, const std::vector<PeerGroup*>& groups,
                             const CommOptions& options, std::mt19937& order,
                             const base::Interrupts& interrupts);

}  // namespace ljtrain::ljperf
