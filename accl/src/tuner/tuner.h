// Which algorithm serves which operation: a cost model over what was measured on this machine, or
// what NCCL_ALGO says.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "accl/types.h"
#include "bootstrap/bootstrap.h"
#include "transport/shared_memory/segment.h"

namespace ljtrain::accl::tuner {

enum class Algorithm : std::uint8_t {
  kOneStep,
  kStaged,  // or pulled, where the buffers allow it
  kRing,
  kTree,
  kRecursiveDoubling,
  kHalvingDoubling,
};
inline constexpr int kAlgorithms = 6;
std::string_view name_of(Algorithm algorithm);

// NCCL_ALGO as sets of allowed algorithms, one for each operation, one bit for each algorithm:
// "Ring,Tree" only these, "^Ring" all but these, "Ring;allreduce:Tree" all-reduce by trees and the
// rest by rings. Names that ACCL does not have are ignored. All allowed when unset.
using AllowedAlgorithms = std::array<std::uint32_t, kOperationKinds>;
AllowedAlgorithms allowed_algorithms(const char* nccl_algo);

// On the coordinator: from every rank's hello.
shared_memory::Tuning choose(const std::vector<bootstrap::Hello>& hellos);

struct Candidate {
  Algorithm algorithm;
  double seconds;
};
// Every algorithm that can serve the operation, cheapest first. `bytes` is one rank's `count` in
// bytes; `widening` is accumulator size by element size for reductions (types that travel wider in
// rings and trees).
std::vector<Candidate> candidates(const shared_memory::Tuning& tuning, OperationKind kind,
                                  std::size_t bytes, int ranks, double widening);
// The first of them; all ranks choose alike. Remembers what it chose lately: small operations have
// no time for the model.
class Choices {
 public:
  Choices(const shared_memory::Tuning& tuning, int ranks) : tuning_(tuning), ranks_(ranks) {}
  Algorithm choose(OperationKind kind, std::size_t bytes, double widening);

 private:
  struct Choice {
    OperationKind kind = OperationKind::kBarrier;
    std::size_t bytes = 1;  // no barrier has any
    double widening = 0;
    Algorithm algorithm = Algorithm::kOneStep;
  };
  const shared_memory::Tuning& tuning_;
  int ranks_;
  std::array<Choice, 32> choices_{};
};

// Whether moving this much by process_vm_readv beats the stages.
bool is_process_read_faster(const shared_memory::Tuning& tuning, std::size_t bytes);

}  // namespace ljtrain::accl::tuner
