#include "accl_tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <optional>

namespace ljtrain {
namespace {

std::optional<accl::DataType> data_type(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Char:
      return accl::DataType::kInt8;
    case at::ScalarType::Byte:
      return accl::DataType::kUint8;
    case at::ScalarType::Short:
      return accl::DataType::kInt16;
    case at::ScalarType::UInt16:
      return accl::DataType::kUint16;
    case at::ScalarType::Int:
      return accl::DataType::kInt32;
    case at::ScalarType::UInt32:
      return accl::DataType::kUint32;
    case at::ScalarType::Long:
      return accl::DataType::kInt64;
    case at::ScalarType::UInt64:
      return accl::DataType::kUint64;
    case at::ScalarType::Half:
      return accl::DataType::kFloat16;
    case at::ScalarType::Float:
      return accl::DataType::kFloat32;
    case at::ScalarType::Double:
      return accl::DataType::kFloat64;
    case at::ScalarType::BFloat16:
      return accl::DataType::kBfloat16;
    case at::ScalarType::Float8_e4m3fn:
      return accl::DataType::kFloat8E4m3;
    case at::ScalarType::Float8_e5m2:
      return accl::DataType::kFloat8E5m2;
    case at::ScalarType::Bool:
      return accl::DataType::kBool;
    case at::ScalarType::ComplexFloat:
      return accl::DataType::kComplex64;
    case at::ScalarType::ComplexDouble:
      return accl::DataType::kComplex128;
    default:
      return std::nullopt;
  }
}

accl::ReduceOp reduce_op(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return accl::ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return accl::ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return accl::ReduceOp::kProd;
    case c10d::ReduceOp::MIN:
      return accl::ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return accl::ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return accl::ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR:
      return accl::ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR:
      return accl::ReduceOp::kBitXor;
    case c10d::ReduceOp::PREMUL_SUM:
      return accl::ReduceOp::kPremulSum;
    default:
      TORCH_CHECK_VALUE(false, "accl: unknown reduction");
  }
}

accl::Scale scale_of(const c10d::ReduceOp& op, at::ScalarType type) {
  const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "accl: PREMUL_SUM without a factor");
  const at::Scalar scalar = factor->tensor_factor.defined() ? factor->tensor_factor.item()
                                                            : at::Scalar(factor->double_factor);
  accl::Scale scale;
  scale.real = scalar.toDouble();
  if (at::isIntegralType(type, /*includeBool=*/true)) {
    scale.integer = scalar.toLong();
  }
  return scale;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

Shape shape_to_move(const at::Tensor& tensor) {
  if (const auto type = data_type(tensor.scalar_type())) {
    return {.type = *type, .count = static_cast<std::size_t>(tensor.numel())};
  }
  return {.type = accl::DataType::kUint8, .count = tensor.nbytes()};
}

Shape shape_to_reduce(const at::Tensor& tensor) {
  const auto count = static_cast<std::size_t>(tensor.numel());
  const auto type = data_type(tensor.scalar_type());
  TORCH_CHECK_VALUE(type.has_value(), "accl: cannot reduce tensors of type ", tensor.scalar_type());
  return {.type = *type, .count = count};
}

Reduction reduction(const c10d::ReduceOp& op, at::ScalarType type) {
  Reduction result{.op = reduce_op(op)};
  if (result.op == accl::ReduceOp::kPremulSum) {
    result.scale = scale_of(op, type);
  }
  if (const auto known = data_type(type)) {
    TORCH_CHECK_VALUE(accl::is_supported(*known, result.op), "accl: ", accl::name_of(result.op),
                      " has no meaning on ", accl::name_of(*known), " tensors");
  }
  return result;
}

Staged::Staged(const at::Tensor& tensor, Use use) : tensor_(tensor) {
  if (is_plain(tensor)) {
    memory_ = tensor;
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  memory_ = at::empty(tensor.sizes(), tensor.options()
                                          .device(at::kCPU)
                                          .memory_format(at::MemoryFormat::Contiguous)
                                          .requires_grad(false));
  if (use != Use::kWrite) {
    memory_.copy_(tensor);
  }
}

void Staged::write_back() const {
  if (!memory_.is_same(tensor_)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    tensor_.copy_(memory_);
  }
}

StagedParts::StagedParts(const std::vector<at::Tensor>& tensors, Staged::Use use) {
  staged_.reserve(tensors.size());
  parts_.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    const Staged& staged = staged_.emplace_back(tensor, use);
    const Shape shape = shape_to_move(tensor);
    element_bytes_ = accl::size_of(shape.type);
    parts_.push_back({.data = staged.data(), .count = shape.count});
  }
}

void* StagedParts::side_by_side() const {
  auto* expected = static_cast<std::byte*>(parts_.front().data);
  for (const accl::Part& part : parts_) {
    if (part.count != parts_.front().count || part.data != expected) {
      return nullptr;
    }
    expected += part.count * element_bytes_;
  }
  return parts_.front().data;
}

void StagedParts::write_back() const {
  for (const Staged& staged : staged_) {
    staged.write_back();
  }
}

std::size_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    // Sparse tensors have no byte size.
    bytes += tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
  }
  return bytes;
}

}  // namespace ljtrain
