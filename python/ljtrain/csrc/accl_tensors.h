// Tensors as ACCL sees them: contiguous host memory of a type that it knows.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "accl/types.h"

namespace ljtrain {

// How a tensor is moved. Types that ACCL does not know travel as bytes.
struct Shape {
  accl::DataType type = accl::DataType::kUint8;
  std::size_t count = 0;  // elements of `type`
};
Shape shape_to_move(const at::Tensor& tensor);
// How it is reduced: numbers only. Throws ValueError.
Shape shape_to_reduce(const at::Tensor& tensor);

struct Reduction {
  accl::ReduceOp op = accl::ReduceOp::kSum;
  accl::Scale scale = {};
};
// Throws ValueError for what ACCL cannot compute on this type.
Reduction reduction(const c10d::ReduceOp& op, at::ScalarType type);

// The memory of one tensor while an operation runs: the tensor's own where that is contiguous host
// memory, else a copy that is written back.
class Staged {
 public:
  enum class Use : unsigned char { kRead, kWrite, kReadWrite };
  Staged(const at::Tensor& tensor, Use use);

  void* data() const { return memory_.data_ptr(); }
  // Gives what was received to the tensor. Not for kRead.
  void write_back() const;

 private:
  at::Tensor tensor_;
  at::Tensor memory_;
};

// Several tensors, one per rank, as one side of a collective.
class StagedParts {
 public:
  StagedParts(const std::vector<at::Tensor>& tensors, Staged::Use use);

  // The start when all are of one size and lie side by side (views of one tensor, as from chunk()),
  // else null.
  void* side_by_side() const;
  std::span<const accl::Part> parts() const { return parts_; }
  void write_back() const;

 private:
  std::vector<Staged> staged_;
  std::vector<accl::Part> parts_;
  std::size_t element_bytes_ = 1;
};

std::size_t bytes_of(const std::vector<at::Tensor>& tensors);

}  // namespace ljtrain
