// Collectives that read the peers' buffers themselves, once, instead of through the stages.
// Possible where all ranks are threads of one process, where the buffers lie in memory of
// Communicator::allocate(), and, for moving data only, by process_vm_readv where that is allowed
// and measured to be faster.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "algorithm/session.h"
#include "communicator/allocation.h"

namespace ljtrain::accl {

class Pull {
 public:
  Pull(const shared_memory::Segment& segment, int rank, int ranks);

  // After the session has met all. Runs the collective and returns true, or returns false, on all
  // ranks alike; chunks may have been passed then, but no data moved.
  bool try_run(Session& session, bool process_read_is_faster);
  // Whether all ranks are threads of this process.
  bool is_one_process() const { return one_process_; }

 private:
  enum class Way { kNone, kMapped, kRead };
  Way way_for(Session& session, bool process_read_is_faster) const;
  // Maps what is not mapped yet. All ranks agree on the outcome.
  bool prepare(Session& session, Way way);
  bool map_buffers_of(Session& session, int peer);
  const std::byte* mapped(Session& session, int peer, bool recv) const;
  void copy_from(Session& session, Way way, int peer, std::size_t offset, std::byte* to,
                 std::size_t bytes, bool streaming);
  void move_data(Session& session, Way way);
  void reduce_scatter(Session& session);
  void all_reduce(Session& session);

  const shared_memory::Segment& segment_;
  int rank_;
  int ranks_;
  bool one_process_ = true;
  // What all ranks have agreed on: whether each of them can.
  bool may_map_ = true;
  bool may_read_ = true;
  std::set<int> probed_;  // whose memory has been tried
  // By owner and allocation. Every rank drops and adds at the same collectives, its own included,
  // so that all know whether an agreement is needed.
  std::map<std::pair<int, std::uint64_t>, std::unique_ptr<allocation::Mapping>> mappings_;
  std::map<int, std::uint64_t> deallocations_;
};

}  // namespace ljtrain::accl
