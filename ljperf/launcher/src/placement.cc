#include <algorithm>

#include "base/errors.h"
#include "launcher/hardware.h"

namespace ljtrain::ljperf {

std::vector<std::vector<int>> place_ranks(const std::vector<Core>& cores, int ranks,
                                          bool oversubscribe) {
  if (ranks < 1) {
    throw base::user_error("--ranks {}: at least one rank is needed", ranks);
  }
  auto count = static_cast<std::size_t>(ranks);
  if (count > cores.size() && !oversubscribe) {
    throw base::user_error(
        "--ranks {}: this process may use {} cores, and ranks that share a core measure each "
        "other; use at most "
        "{} ranks, or add --oversubscribe",
        ranks, cores.size(), cores.size());
  }
  std::vector<std::vector<int>> places(count);
  if (cores.empty()) {
    return places;
  }
  if (count > cores.size()) {
    for (std::size_t rank = 0; rank < count; ++rank) {
      places[rank] = cores[rank % cores.size()].cpus;
    }
    return places;
  }
  // Equal shares of neighbouring cores; what does not divide is left idle rather than given to one
  // rank.
  std::size_t share = cores.size() / count;
  for (std::size_t rank = 0; rank < count; ++rank) {
    for (std::size_t core = rank * share; core < (rank + 1) * share; ++core) {
      places[rank].insert(places[rank].end(), cores[core].cpus.begin(), cores[core].cpus.end());
    }
    std::sort(places[rank].begin(), places[rank].end());
  }
  return places;
}

}  // namespace ljtrain::ljperf
