#include "accl/types.h"

#include <fmt/format.h>

#include <array>

namespace ljtrain::accl {
namespace {

struct TypeFacts {
  std::string_view name;
  std::size_t size;
};
constexpr std::array<TypeFacts, kDataTypes> kTypes = {{{"int8", 1},
                                                       {"uint8", 1},
                                                       {"int32", 4},
                                                       {"uint32", 4},
                                                       {"int64", 8},
                                                       {"uint64", 8},
                                                       {"float16", 2},
                                                       {"float32", 4},
                                                       {"float64", 8},
                                                       {"bfloat16", 2},
                                                       {"float8_e4m3", 1},
                                                       {"float8_e5m2", 1},
                                                       {"bool", 1},
                                                       {"int16", 2},
                                                       {"uint16", 2},
                                                       {"complex64", 8},
                                                       {"complex128", 16}}};
constexpr std::array<std::string_view, kReduceOps> kOps = {
    "sum", "prod", "max", "min", "avg", "premul_sum", "bit_and", "bit_or", "bit_xor"};
constexpr std::array<std::string_view, kOperationKinds> kKinds = {
    "barrier",        "all_reduce", "broadcast", "reduce", "all_gather",
    "reduce_scatter", "all_to_all", "gather",    "scatter"};

bool is_complex(DataType type) {
  return type == DataType::kComplex64 || type == DataType::kComplex128;
}
bool is_floating(DataType type) {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kFloat32:
    case DataType::kFloat64:
    case DataType::kBfloat16:
    case DataType::kFloat8E4m3:
    case DataType::kFloat8E5m2:
      return true;
    default:
      return is_complex(type);
  }
}

}  // namespace

std::size_t size_of(DataType type) { return kTypes.at(static_cast<std::size_t>(type)).size; }
std::string_view name_of(DataType type) { return kTypes.at(static_cast<std::size_t>(type)).name; }
std::string_view name_of(ReduceOp op) { return kOps.at(static_cast<std::size_t>(op)); }
std::string_view name_of(OperationKind kind) { return kKinds.at(static_cast<std::size_t>(kind)); }

bool is_supported(DataType type, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
    case ReduceOp::kMin:
      return !is_complex(type);
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return !is_floating(type);
    default:
      return true;
  }
}

std::string describe(const Collective& collective) {
  const bool reduces = collective.kind == OperationKind::kAllReduce ||
                       collective.kind == OperationKind::kReduce ||
                       collective.kind == OperationKind::kReduceScatter;
  const bool rooted =
      collective.kind == OperationKind::kBroadcast || collective.kind == OperationKind::kReduce ||
      collective.kind == OperationKind::kGather || collective.kind == OperationKind::kScatter;
  std::string text{name_of(collective.kind)};
  if (collective.kind != OperationKind::kBarrier) {
    text += fmt::format(" of {} {}", collective.count, name_of(collective.type));
  }
  if (reduces) {
    text += fmt::format(", {}", name_of(collective.op));
  }
  if (rooted) {
    text += fmt::format(", root {}", collective.root);
  }
  return text;
}

}  // namespace ljtrain::accl
