// The operations and types that `ljperf comm` measures: shared by the orchestrator and the drivers,
// and compiled into drivers at run time, so nothing but the standard library.
#pragma once

#include <cstddef>

namespace ljperf_comm {

enum class Op {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kReduce,
  kGather,
  kScatter,
};
inline constexpr const char* kOpNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                           "broadcast",  "all_to_all", "reduce",
                                           "gather",     "scatter"};
enum class Type { kInt8, kUint8, kInt32, kInt64, kFloat16, kBfloat16, kFloat32, kFloat64 };
inline constexpr const char* kTypeNames[] = {"int8",    "uint8",    "int32",   "int64",
                                             "float16", "bfloat16", "float32", "float64"};
inline constexpr std::size_t kTypeSizes[] = {1, 1, 4, 8, 2, 2, 4, 8};
inline constexpr int kRoot = 0;

inline std::size_t size_of(Type type) { return kTypeSizes[static_cast<int>(type)]; }

// Has every rank shares of its own on this side?
inline bool sends_all(Op op) {
  return op == Op::kReduceScatter || op == Op::kAllToAll || op == Op::kScatter;
}
inline bool receives_all(Op op) {
  return op == Op::kAllGather || op == Op::kAllToAll || op == Op::kGather;
}
inline bool reduces(Op op) {
  return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce;
}

// Sizes as nccl-tests counts them: the whole buffer, also where each rank has a share of it
// (all_gather, reduce_scatter, ...).
inline bool has_shares(Op op) { return sends_all(op) || receives_all(op); }
// Elements for Call::count: those of one rank where the ranks have shares. At least one.
inline std::size_t count_of(Op op, Type type, std::size_t bytes, int ranks) {
  std::size_t shares = has_shares(op) ? static_cast<std::size_t>(ranks) : 1;
  std::size_t count = bytes / size_of(type) / shares;
  return count > 0 ? count : 1;
}
inline std::size_t bytes_of(Op op, Type type, std::size_t count, int ranks) {
  return count * size_of(type) * (has_shares(op) ? static_cast<std::size_t>(ranks) : 1);
}

// Bus bandwidth / algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): what the slowest link must
// carry, whatever the algorithm.
inline double bus_factor(Op op, int ranks) {
  double n = ranks;
  switch (op) {
    case Op::kAllReduce:
      return 2 * (n - 1) / n;
    case Op::kAllGather:
    case Op::kReduceScatter:
    case Op::kAllToAll:
    case Op::kGather:
    case Op::kScatter:
      return (n - 1) / n;
    case Op::kBroadcast:
    case Op::kReduce:
      return 1;
  }
  return 1;
}

}  // namespace ljperf_comm
