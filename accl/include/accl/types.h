// The vocabulary of ACCL: data types, operators, and the description of one operation. No I/O, no
// state.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ljtrain::accl {

// 0..11 are NCCL's numbers (ncclDataType_t). Those after are c10d's, which NCCL does not have.
enum class DataType : std::uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8E4m3 = 10,  // OCP FP8 E4M3 ("fn": no infinity, NaN is 0x7f/0xff)
  kFloat8E5m2 = 11,  // OCP FP8 E5M2 (IEEE-like: infinities and NaNs)
  kBool = 12,        // one byte, 0 or 1
  kInt16 = 13,
  kUint16 = 14,
  kComplex64 = 15,   // two float32
  kComplex128 = 16,  // two float64
};
inline constexpr int kDataTypes = 17;

// Size of one element, bytes.
std::size_t size_of(DataType type);
// "float32", "bfloat16", ...
std::string_view name_of(DataType type);

// 0..4 are NCCL's numbers (ncclRedOp_t).
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kProd = 1,
  kMax = 2,
  kMin = 3,
  kAvg = 4,        // sum / ranks; on integers the quotient is truncated towards zero
  kPremulSum = 5,  // sum of scale_r * x_r, every rank with its own scale
  kBitAnd = 6,     // integers and bool
  kBitOr = 7,
  kBitXor = 8,
};
inline constexpr int kReduceOps = 9;
std::string_view name_of(ReduceOp op);

// False for the pairs that have no meaning: bit operators on floating point, max/min on complex.
bool is_supported(DataType type, ReduceOp op);

// The factor of kPremulSum: `real` for floating-point types (already in the precision the caller
// gave), `integer` for integer ones.
struct Scale {
  double real = 1;
  std::int64_t integer = 1;
};

enum class OperationKind : std::uint8_t {
  kBarrier,
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
};
inline constexpr int kOperationKinds = 9;
// "all_reduce", "broadcast", ...
std::string_view name_of(OperationKind kind);

// One rank's share of a buffer. `count` is in elements.
struct Part {
  void* data = nullptr;
  std::size_t count = 0;
};

// One collective, as one rank calls it.
//
//   kind            send                   recv                         count: elements
//   barrier         -                      -                            0
//   all_reduce      count                  count                        of the whole
//   reduce          count                  count on the root            of the whole
//   broadcast       count on the root      count                        of the whole
//   all_gather      count                  ranks * count                of one rank
//   reduce_scatter  ranks * count          count                        of one rank
//   all_to_all      ranks * count          ranks * count                from one rank to one rank
//   gather          count                  ranks * count on the root    of one rank
//   scatter         ranks * count on root  count                        of one rank
//
// In place, as in NCCL: send == recv; for all_gather and gather (root) send == recv + rank * count;
// for reduce_scatter and scatter (root) recv == send + rank * count; all_to_all with send == recv
// is supported as well. Any other overlap is not.
//
// Where ranks have different shares or the shares do not lie side by side, the side that is "ranks
// * count" is given as `parts` instead, one per rank, and `send`/`recv`/`count` of that side are
// ignored:
//   all_gather, gather:       recv_parts (gather: on the root); `count` is this rank's own share
//   reduce_scatter, scatter:  send_parts (scatter: on the root); `count` is this rank's own share
//   all_to_all:               send_parts and recv_parts, both
struct Collective {
  OperationKind kind = OperationKind::kBarrier;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  Scale scale = {};  // of kPremulSum
  int root = 0;
  // NOLINTBEGIN(readability-redundant-member-init): g++ warns of aggregates made without them
  std::span<const Part> send_parts = {};
  std::span<const Part> recv_parts = {};
  // NOLINTEND(readability-redundant-member-init)
  // From the call on this rank to its end; unset: the communicator's.
  std::optional<std::chrono::nanoseconds> timeout = std::nullopt;
};

// One line for people: "all_reduce of 1024 float32, sum".
std::string describe(const Collective& collective);

inline constexpr int kAnySource = -1;

// A message between two ranks. Messages of one sender to one receiver with one tag arrive in the
// order sent.
struct Message {
  enum class Direction : std::uint8_t { kSend, kReceive };
  Direction direction = Direction::kSend;
  void* data = nullptr;  // read, not written, by a send
  std::size_t bytes = 0;
  int peer = 0;  // a receive may say kAnySource
  int tag = 0;
  // From the call on; unset: the communicator's.
  std::optional<std::chrono::nanoseconds> timeout = std::nullopt;
};

}  // namespace ljtrain::accl
