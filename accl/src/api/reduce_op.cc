#include "api/reduce_op.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "accl/error.h"
#include "api/arguments.h"
#include "api/comm.h"
#include "api/result.h"

namespace ljtrain::accl::api {
namespace {

// A handle: 1 | salt | slot. The leading bit keeps it above NCCL's built-in operators, and below
// ncclMaxRedOp.
constexpr std::uint32_t kMark = 1U << 30;
constexpr int kSlotBits = 14;
constexpr std::uint32_t kSlots = 1U << kSlotBits;
constexpr std::uint32_t kSalts = 1U << (30 - kSlotBits);

// Apart for each communicator, so that the handle of one is not valid in another.
std::atomic<std::uint32_t> communicators{0};
constexpr std::uint32_t kSaltStep = 251;

template <typename T>
T read_as(const void* scalar) {
  T value;
  std::memcpy(&value, scalar, sizeof(value));
  return value;
}

struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;  // else only the largest pattern is not a number
};

// Decodes a floating-point number of 8 or 16 bits. Exact: each has a double of the same value.
double decode(std::uint32_t bits, SmallFloat format) {
  const std::uint32_t exponents = (1U << format.exponent_bits) - 1;
  const std::uint32_t mantissas = (1U << format.mantissa_bits) - 1;
  const std::uint32_t exponent = (bits >> format.mantissa_bits) & exponents;
  const std::uint32_t mantissa = bits & mantissas;
  const double sign = (bits >> (format.exponent_bits + format.mantissa_bits)) != 0 ? -1 : 1;
  const int bias = static_cast<int>(exponents >> 1);
  if (exponent == exponents && format.has_infinity) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == exponents && mantissa == mantissas) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1 + fraction, static_cast<int>(exponent) - bias);
}

}  // namespace

Scale read_scale(const void* scalar, DataType type) {
  switch (type) {
    case DataType::kInt8:
      return {.integer = read_as<std::int8_t>(scalar)};
    case DataType::kUint8:
      return {.integer = read_as<std::uint8_t>(scalar)};
    case DataType::kInt32:
      return {.integer = read_as<std::int32_t>(scalar)};
    case DataType::kUint32:
      return {.integer = read_as<std::uint32_t>(scalar)};
    case DataType::kInt64:
    case DataType::kUint64:  // products wrap, so the bits are what counts
      return {.integer = read_as<std::int64_t>(scalar)};
    case DataType::kFloat16:
      return {.real = decode(read_as<std::uint16_t>(scalar), {5, 10, true})};
    case DataType::kBfloat16:
      return {.real = decode(read_as<std::uint16_t>(scalar), {8, 7, true})};
    case DataType::kFloat8E4m3:
      return {.real = decode(read_as<std::uint8_t>(scalar), {4, 3, false})};
    case DataType::kFloat8E5m2:
      return {.real = decode(read_as<std::uint8_t>(scalar), {5, 2, true})};
    case DataType::kFloat32:
      return {.real = read_as<float>(scalar)};
    case DataType::kFloat64:
      return {.real = read_as<double>(scalar)};
    default:
      throw error(ErrorCode::kInternal, "{} is no type of NCCL", name_of(type));
  }
}

ReduceOps::ReduceOps()
    : next_salt_(communicators.fetch_add(kSaltStep, std::memory_order_relaxed) % kSalts) {}

ncclRedOp_t ReduceOps::create(const PremulOp& op) {
  const std::scoped_lock lock(mutex_);
  if (free_.empty()) {
    if (slots_.size() == kSlots) {
      throw error(ErrorCode::kInvalidUsage,
                  "{} operators exist on this communicator: destroy those not in use "
                  "(ncclRedOpDestroy)",
                  kSlots);
    }
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  const std::uint32_t salt = next_salt_;
  next_salt_ = (next_salt_ + 1) % kSalts;
  slots_[index] = {op, salt, true};
  return static_cast<ncclRedOp_t>(kMark | (salt << kSlotBits) | index);
}

const ReduceOps::Slot& ReduceOps::slot_of(ncclRedOp_t handle) const {
  const auto bits = static_cast<std::uint32_t>(handle);
  const std::uint32_t index = bits % kSlots;
  const bool is_ours = (bits & ~(kMark - 1)) == kMark && index < slots_.size() &&
                       slots_[index].is_used &&
                       slots_[index].salt == ((bits & (kMark - 1)) >> kSlotBits);
  if (!is_ours) {
    throw error(ErrorCode::kInvalidArgument,
                "op {:#x} is neither an operator of NCCL nor one that ncclRedOpCreatePreMulSum "
                "made for this communicator and ncclRedOpDestroy has left",
                bits);
  }
  return slots_[index];
}

PremulOp ReduceOps::find(ncclRedOp_t handle) const {
  const std::scoped_lock lock(mutex_);
  return slot_of(handle).op;
}

void ReduceOps::destroy(ncclRedOp_t handle) {
  const std::scoped_lock lock(mutex_);
  const auto index = static_cast<std::uint32_t>(&slot_of(handle) - slots_.data());
  slots_[index].is_used = false;
  free_.push_back(index);
}

}  // namespace ljtrain::accl::api

using namespace ljtrain::accl;
using namespace ljtrain::accl::api;

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_created(comm);
    require_pointer(op, "op");
    require_pointer(scalar, "scalar");
    PremulOp made;
    made.type = require_type(datatype);
    switch (static_cast<int>(residence)) {
      case ncclScalarHostImmediate:
        made.scale = read_scale(scalar, made.type);
        break;
      case ncclScalarDevice:
        made.late_scalar = scalar;
        break;
      default:
        throw error(ErrorCode::kInvalidArgument,
                    "residence {} is neither ncclScalarDevice nor ncclScalarHostImmediate",
                    static_cast<int>(residence));
    }
    *op = found->reduce_ops().create(made);
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclRedOpCreatePreMulSum);

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return guarded([&] {
    const std::shared_ptr<Comm> found = Comm::find_created(comm);
    if (static_cast<unsigned>(op) < ncclNumOps) {
      throw error(ErrorCode::kInvalidArgument, "op {} is built in: it cannot be destroyed",
                  static_cast<int>(op));
    }
    found->reduce_ops().destroy(op);
    return ncclSuccess;
  });
}
ACCL_ALIAS(ncclRedOpDestroy);
