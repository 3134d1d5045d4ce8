// The collectives of the backend: each checks its arguments as Gloo does, and describes what ACCL
// is to run.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "accl_backend.h"
#include "accl_checks.h"
#include "accl_tensors.h"

namespace ljtrain {
namespace {

using accl::Collective;
using accl::Communicator;
using accl::OperationKind;
using Timeout = CollectiveWork::Timeout;
using Use = Staged::Use;

// Below this, one operation for all tensors of a coalesced one; above, copying together costs more
// than it saves.
constexpr std::size_t kFlattenBytes = std::size_t{256} << 10;

void check_multiple(const Complaint& invalid, const at::Tensor& large, const at::Tensor& small,
                    int ranks, const char* sentence) {
  c10d::assertDense(invalid, {large, small});
  if (large.scalar_type() != small.scalar_type()) {
    invalid("output tensor must have the same type as input tensor");
  }
  if (large.numel() != small.numel() * ranks) {
    invalid(sentence);
  }
}

// ---- what the bodies run ----

void run_all_reduce(Communicator& communicator, const at::Tensor& tensor, const Reduction& how,
                    Timeout timeout) {
  const Staged staged(tensor, Use::kReadWrite);
  const Shape shape = shape_to_reduce(tensor);
  communicator.run({.kind = OperationKind::kAllReduce,
                    .send = staged.data(),
                    .recv = staged.data(),
                    .count = shape.count,
                    .type = shape.type,
                    .op = how.op,
                    .scale = how.scale,
                    .timeout = timeout});
  staged.write_back();
}

void run_all_gather(Communicator& communicator, const Tensors& outputs, const at::Tensor& input,
                    Timeout timeout) {
  const Staged send(input, Use::kRead);
  const StagedParts recv(outputs, Use::kWrite);
  const Shape shape = shape_to_move(input);
  Collective collective{.kind = OperationKind::kAllGather,
                        .send = send.data(),
                        .count = shape.count,
                        .type = shape.type,
                        .timeout = timeout};
  collective.recv = recv.side_by_side();
  if (collective.recv == nullptr) {
    collective.recv_parts = recv.parts();
  }
  communicator.run(collective);
  recv.write_back();
}

void run_all_gather_base(Communicator& communicator, const at::Tensor& output,
                         const at::Tensor& input, Timeout timeout) {
  const Staged send(input, Use::kRead);
  const Staged recv(output, Use::kWrite);
  const Shape shape = shape_to_move(input);
  communicator.run({.kind = OperationKind::kAllGather,
                    .send = send.data(),
                    .recv = recv.data(),
                    .count = shape.count,
                    .type = shape.type,
                    .timeout = timeout});
  recv.write_back();
}

void run_reduce_scatter(Communicator& communicator, const at::Tensor& output, const Tensors& inputs,
                        const Reduction& how, Timeout timeout) {
  const StagedParts send(inputs, Use::kRead);
  const Staged recv(output, Use::kWrite);
  const Shape shape = shape_to_reduce(output);
  Collective collective{.kind = OperationKind::kReduceScatter,
                        .recv = recv.data(),
                        .count = shape.count,
                        .type = shape.type,
                        .op = how.op,
                        .scale = how.scale,
                        .timeout = timeout};
  collective.send = send.side_by_side();
  if (collective.send == nullptr) {
    collective.send_parts = send.parts();
  }
  communicator.run(collective);
  recv.write_back();
}

void run_reduce_scatter_base(Communicator& communicator, const at::Tensor& output,
                             const at::Tensor& input, const Reduction& how, Timeout timeout) {
  const Staged send(input, Use::kRead);
  const Staged recv(output, Use::kWrite);
  const Shape shape = shape_to_reduce(output);
  communicator.run({.kind = OperationKind::kReduceScatter,
                    .send = send.data(),
                    .recv = recv.data(),
                    .count = shape.count,
                    .type = shape.type,
                    .op = how.op,
                    .scale = how.scale,
                    .timeout = timeout});
  recv.write_back();
}

// ---- sparse ----

// Indices and values of each rank are gathered and summed on every rank. As with Gloo, at most four
// sparse and four dense dimensions.
constexpr std::int64_t kMostDimensions = 4;
constexpr std::int64_t kHeader = 2 * kMostDimensions + 1;  // sizes, then the number of values

at::Tensor header_of(const at::Tensor& sparse) {
  TORCH_CHECK_VALUE(sparse.sparse_dim() <= kMostDimensions && sparse.dense_dim() <= kMostDimensions,
                    "accl: sparse all_reduce takes at most 4 sparse and 4 dense dimensions");
  at::Tensor header = at::zeros({kHeader}, at::kLong);
  auto* data = header.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < sparse.dim(); ++i) {
    const bool is_dense = i >= sparse.sparse_dim();
    data[is_dense ? kMostDimensions + i - sparse.sparse_dim() : i] = sparse.size(i);
  }
  data[kHeader - 1] = sparse._nnz();
  return header;
}

at::Tensor all_reduce_sparse(Communicator& communicator, at::Tensor input, Timeout timeout) {
  const at::AutoDispatchBelowAutograd guard;
  input = input.coalesce();
  const std::int64_t ranks = communicator.size();
  const at::Tensor header = header_of(input);
  const at::Tensor headers = at::empty({ranks, kHeader}, at::kLong);
  run_all_gather_base(communicator, headers, header, timeout);
  Tensors indices;
  Tensors values;
  std::vector<std::int64_t> value_shape(input.sizes().begin() + input.sparse_dim(),
                                        input.sizes().end());
  value_shape.insert(value_shape.begin(), 0);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const at::Tensor other = headers.select(0, rank);
    TORCH_CHECK(other.slice(0, 0, kHeader - 1).equal(header.slice(0, 0, kHeader - 1)),
                "Sparse dimensions do not match: rank ", communicator.rank(), " has ",
                input.sizes(), ", rank ", rank, " has others");
    value_shape[0] = other[kHeader - 1].item<std::int64_t>();
    indices.push_back(at::empty({input.sparse_dim(), value_shape[0]}, at::kLong));
    values.push_back(at::empty(value_shape, input.values().options()));
  }
  run_all_gather(communicator, indices, input.indices().contiguous(), timeout);
  run_all_gather(communicator, values, input.values().contiguous(), timeout);
  at::Tensor sum = at::sparse_coo_tensor(indices[0], values[0], input.sizes(), input.options());
  for (std::int64_t rank = 1; rank < ranks; ++rank) {
    sum += at::sparse_coo_tensor(indices[rank], values[rank], input.sizes(), input.options());
  }
  return sum.coalesce();
}

}  // namespace

// ---- all_reduce, reduce, broadcast ----

c10::intrusive_ptr<c10d::Work> AcclBackend::allreduce(Tensors& tensors,
                                                      const c10d::AllreduceOptions& opts) {
  const Complaint invalid = complain("allreduce");
  c10d::assertNonEmpty(invalid, tensors);
  if (tensors[0].layout() == at::kSparse) {
    return allreduce_sparse(tensors, opts);
  }
  if (tensors.size() > 1 || tensors[0].layout() != at::kStrided) {
    check_alike(invalid, tensors);
  }
  const Reduction how = reduction(opts.reduceOp, tensors[0].scalar_type());
  return submit({.operation = AcclOperation::kAllReduce,
                 .kind = c10d::OpType::ALLREDUCE,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = tensors,
                 .outputs = {tensors}},
                [tensors, how](Communicator& communicator, Timeout timeout) {
                  // Several tensors are as many more ranks.
                  const at::AutoDispatchBelowADInplaceOrView guard;
                  for (std::size_t i = 1; i < tensors.size(); ++i) {
                    TORCH_CHECK_VALUE(how.op == accl::ReduceOp::kSum,
                                      "accl: several tensors in one all_reduce can be summed only");
                    tensors[0].add_(tensors[i]);
                  }
                  run_all_reduce(communicator, tensors[0], how, timeout);
                  for (std::size_t i = 1; i < tensors.size(); ++i) {
                    tensors[i].copy_(tensors[0]);
                  }
                });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::allreduce_sparse(Tensors& tensors,
                                                             const c10d::AllreduceOptions& opts) {
  const Complaint invalid = complain("allreduce");
  c10d::assertNonEmpty(invalid, tensors);
  c10d::assertLayoutMatch(invalid, tensors);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.layout() != at::kSparse) {
      invalid("unsupported layout");
    }
  }
  if (opts.reduceOp != c10d::ReduceOp::SUM) {
    invalid(
        "unsupported reduction operation (allreduce of sparse tensors only works with "
        "ReduceOp.SUM)");
  }
  return submit({.operation = AcclOperation::kSparseAllReduce,
                 .kind = c10d::OpType::_ALLREDUCE_SPARSE,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = tensors,
                 .outputs = {tensors}},
                [tensors](Communicator& communicator, Timeout timeout) {
                  const at::AutoDispatchBelowAutograd guard;
                  at::Tensor input = tensors[0];
                  for (std::size_t i = 1; i < tensors.size(); ++i) {
                    input = input + tensors[i];
                  }
                  const at::Tensor sum = all_reduce_sparse(communicator, input, timeout);
                  for (const at::Tensor& tensor : tensors) {
                    tensor.copy_(sum);
                  }
                });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  const Complaint invalid = complain("allreduce_coalesced");
  c10d::assertNonEmpty(invalid, tensors);
  c10d::assertDense(invalid, tensors);
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.options().type_equal(tensors[0].options())) {
      invalid("tensors must all have the same type");
    }
  }
  const Reduction how = reduction(opts.reduceOp, tensors[0].scalar_type());
  return submit({.operation = AcclOperation::kAllReduce,
                 .kind = c10d::OpType::ALLREDUCE_COALESCED,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = tensors,
                 .outputs = {tensors}},
                [tensors, how](Communicator& communicator, Timeout timeout) {
                  if (tensors.size() == 1 || bytes_of(tensors) > kFlattenBytes) {
                    for (const at::Tensor& tensor : tensors) {
                      run_all_reduce(communicator, tensor, how, timeout);
                    }
                    return;
                  }
                  const at::AutoDispatchBelowADInplaceOrView guard;
                  const at::Tensor flat = c10d::flattenDenseTensors(tensors);
                  run_all_reduce(communicator, flat, how, timeout);
                  std::int64_t offset = 0;
                  for (const at::Tensor& tensor : tensors) {
                    tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
                    offset += tensor.numel();
                  }
                });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::reduce(Tensors& tensors,
                                                   const c10d::ReduceOptions& opts) {
  const Complaint invalid = complain("reduce");
  c10d::assertRootRank(invalid, opts.rootRank, size_);
  c10d::assertRootTensor(invalid, opts.rootTensor, static_cast<std::int64_t>(tensors.size()));
  c10d::assertSingleElement(invalid, tensors);
  c10d::assertDense(invalid, tensors);
  const Reduction how = reduction(opts.reduceOp, tensors[0].scalar_type());
  const bool is_root = opts.rootRank == rank_;
  return submit({.operation = AcclOperation::kReduce,
                 .kind = c10d::OpType::REDUCE,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = tensors,
                 .outputs = {tensors}},
                [tensor = tensors[0], how, is_root, root = static_cast<int>(opts.rootRank)](
                    Communicator& communicator, Timeout timeout) {
                  const Staged staged(tensor, Use::kReadWrite);
                  const Shape shape = shape_to_reduce(tensor);
                  communicator.run({.kind = OperationKind::kReduce,
                                    .send = staged.data(),
                                    .recv = is_root ? staged.data() : nullptr,
                                    .count = shape.count,
                                    .type = shape.type,
                                    .op = how.op,
                                    .scale = how.scale,
                                    .root = root,
                                    .timeout = timeout});
                  if (is_root) {
                    staged.write_back();
                  }
                });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::broadcast(Tensors& tensors,
                                                      const c10d::BroadcastOptions& opts) {
  const Complaint invalid = complain("broadcast");
  c10d::assertRootRank(invalid, opts.rootRank, size_);
  c10d::assertRootTensor(invalid, opts.rootTensor, static_cast<std::int64_t>(tensors.size()));
  check_alike(invalid, tensors);
  return submit(
      {.operation = AcclOperation::kBroadcast,
       .kind = c10d::OpType::BROADCAST,
       .timeout = opts.timeout,
       .asynchronous = opts.asyncOp,
       .inputs = tensors,
       .outputs = {tensors}},
      [tensors, is_root = opts.rootRank == rank_, chosen = opts.rootTensor,
       root = static_cast<int>(opts.rootRank)](Communicator& communicator, Timeout timeout) {
        const at::Tensor& tensor = tensors[chosen];
        const Staged staged(tensor, is_root ? Use::kRead : Use::kWrite);
        const Shape shape = shape_to_move(tensor);
        communicator.run({.kind = OperationKind::kBroadcast,
                          .send = staged.data(),
                          .recv = staged.data(),
                          .count = shape.count,
                          .type = shape.type,
                          .root = root,
                          .timeout = timeout});
        if (!is_root) {
          staged.write_back();
        }
        const at::AutoDispatchBelowADInplaceOrView guard;
        for (const at::Tensor& other : tensors) {
          if (!other.is_same(tensor)) {
            other.copy_(tensor);
          }
        }
      });
}

// ---- all_gather ----

c10::intrusive_ptr<c10d::Work> AcclBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  const Complaint invalid = complain("allgather");
  c10d::assertNonEmptyInputTensorList(invalid, inputs.size());
  c10d::assertInputOutputTensorListsSameSize(invalid, outputs.size(), inputs.size());
  check_alike(invalid, inputs);
  const std::size_t expected = inputs.size() * static_cast<std::size_t>(size_);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].size() != expected) {
      invalid(fmt::format("invalid output tensor list at index {} (expected length {}, got {})", i,
                          expected, outputs[i].size()));
    }
    check_same_type(invalid, outputs[i], inputs[0]);
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      check_own_share(invalid, outputs[i][rank_ * inputs.size() + j], inputs[j], rank_);
    }
  }
  return submit({.operation = AcclOperation::kAllGather,
                 .kind = c10d::OpType::ALLGATHER,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = inputs,
                 .outputs = outputs},
                [outputs, inputs](Communicator& communicator, Timeout timeout) {
                  // With several inputs, a rank has as many outputs in a row.
                  for (std::size_t j = 0; j < inputs.size(); ++j) {
                    Tensors of_input;
                    for (std::size_t k = j; k < outputs[0].size(); k += inputs.size()) {
                      of_input.push_back(outputs[0][k]);
                    }
                    run_all_gather(communicator, of_input, inputs[j], timeout);
                  }
                  const at::AutoDispatchBelowADInplaceOrView guard;
                  for (std::size_t i = 1; i < outputs.size(); ++i) {
                    for (std::size_t k = 0; k < outputs[i].size(); ++k) {
                      outputs[i][k].copy_(outputs[0][k]);
                    }
                  }
                });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& opts) {
  check_multiple(complain("_allgather_base"), output, input, size_,
                 "output tensor size must be equal to world_size times input tensor size");
  return submit({.operation = AcclOperation::kAllGather,
                 .kind = c10d::OpType::_ALLGATHER_BASE,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = {input},
                 .outputs = {{output}}},
                [output, input](Communicator& communicator, Timeout timeout) {
                  run_all_gather_base(communicator, output, input, timeout);
                });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::allgather_coalesced(
    TensorLists& output_lists, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const Complaint invalid = complain("allgather_coalesced");
  c10d::assertNonEmptyInputTensorList(invalid, inputs.size());
  c10d::assertAllgatherCoalescedOutputTensorLists(invalid, output_lists, inputs.size(), size_);
  c10d::assertDense(invalid, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (const Tensors& of_rank : output_lists) {
      check_same_type(invalid, {of_rank[i]}, inputs[i]);
    }
    check_own_share(invalid, output_lists[rank_][i], inputs[i], rank_);
  }
  return submit({.operation = AcclOperation::kAllGather,
                 .kind = c10d::OpType::ALLGATHER_COALESCED,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = inputs,
                 .outputs = output_lists},
                [output_lists, inputs](Communicator& communicator, Timeout timeout) {
                  for (std::size_t i = 0; i < inputs.size(); ++i) {
                    Tensors of_input;
                    for (const Tensors& of_rank : output_lists) {
                      of_input.push_back(of_rank[i]);
                    }
                    run_all_gather(communicator, of_input, inputs[i], timeout);
                  }
                });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const Complaint invalid = complain("allgather_into_tensor_coalesced");
  c10d::assertInputOutputTensorListsSameSize(invalid, outputs.size(), inputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_multiple(invalid, outputs[i], inputs[i], size_,
                   "output tensor size must be equal to world_size times input tensor size");
  }
  return submit({.operation = AcclOperation::kAllGather,
                 .kind = c10d::OpType::ALLGATHER_COALESCED,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = inputs,
                 .outputs = {outputs}},
                [outputs, inputs](Communicator& communicator, Timeout timeout) {
                  for (std::size_t i = 0; i < outputs.size(); ++i) {
                    run_all_gather_base(communicator, outputs[i], inputs[i], timeout);
                  }
                });
}

// ---- reduce_scatter ----

c10::intrusive_ptr<c10d::Work> AcclBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  const Complaint invalid = complain("reduce_scatter");
  c10d::assertSingleElementOutput(invalid, outputs);
  c10d::assertScatterInputTensorList(invalid, inputs, size_);
  c10d::assertDense(invalid, outputs);
  check_same_type(invalid, inputs[0], outputs[0]);
  check_own_share(invalid, inputs[0][rank_], outputs[0], rank_);
  const Reduction how = reduction(opts.reduceOp, outputs[0].scalar_type());
  return submit(
      {.operation = AcclOperation::kReduceScatter,
       .kind = c10d::OpType::REDUCE_SCATTER,
       .timeout = opts.timeout,
       .asynchronous = opts.asyncOp,
       .inputs = inputs[0],
       .outputs = {outputs}},
      [output = outputs[0], list = inputs[0], how](Communicator& communicator, Timeout timeout) {
        run_reduce_scatter(communicator, output, list, how, timeout);
      });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  check_multiple(complain("_reduce_scatter_base"), input, output, size_,
                 "input tensor must be the same size as output size times world size");
  const Reduction how = reduction(opts.reduceOp, output.scalar_type());
  return submit({.operation = AcclOperation::kReduceScatter,
                 .kind = c10d::OpType::_REDUCE_SCATTER_BASE,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = {input},
                 .outputs = {{output}}},
                [output, input, how](Communicator& communicator, Timeout timeout) {
                  run_reduce_scatter_base(communicator, output, input, how, timeout);
                });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  const Complaint invalid = complain("reduce_scatter_tensor_coalesced");
  c10d::assertInputOutputTensorListsSameSize(invalid, outputs.size(), inputs.size());
  std::vector<Reduction> how;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_multiple(invalid, inputs[i], outputs[i], size_,
                   "input tensor must be the same size as output size times world size");
    how.push_back(reduction(opts.reduceOp, outputs[i].scalar_type()));
  }
  return submit({.operation = AcclOperation::kReduceScatter,
                 .kind = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = inputs,
                 .outputs = {outputs}},
                [outputs, inputs, how](Communicator& communicator, Timeout timeout) {
                  for (std::size_t i = 0; i < outputs.size(); ++i) {
                    run_reduce_scatter_base(communicator, outputs[i], inputs[i], how[i], timeout);
                  }
                });
}

}  // namespace ljtrain
