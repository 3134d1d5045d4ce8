// The collectives of the backend in which ranks send different things to different ranks; and the
// barrier.
#include <ATen/ATen.h>

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

// The tensor's rows as one part per rank: `splits` rows for each, or equal parts.
std::vector<accl::Part> rows_of(const at::Tensor& tensor, void* memory,
                                const std::vector<std::int64_t>& splits, int ranks) {
  const Shape shape = shape_to_move(tensor);
  const std::size_t element = accl::size_of(shape.type);
  const auto rows = tensor.dim() == 0 ? std::int64_t{1} : tensor.size(0);
  const std::size_t row = rows == 0 ? 0 : shape.count / static_cast<std::size_t>(rows);
  std::vector<accl::Part> parts;
  auto* data = static_cast<std::byte*>(memory);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::size_t count =
        splits.empty() ? shape.count / static_cast<std::size_t>(ranks)
                       : static_cast<std::size_t>(splits[static_cast<std::size_t>(rank)]) * row;
    parts.push_back({.data = data, .count = count});
    data += count * element;
  }
  return parts;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> AcclBackend::gather(TensorLists& outputs, Tensors& inputs,
                                                   const c10d::GatherOptions& opts) {
  const Complaint invalid = complain("gather");
  c10d::assertRootRank(invalid, opts.rootRank, size_);
  c10d::assertSingleElementInput(invalid, inputs);
  c10d::assertDense(invalid, inputs);
  const bool is_root = opts.rootRank == rank_;
  if (is_root) {
    c10d::assertGatherOutputTensorList(invalid, outputs, size_);
    check_same_type(invalid, outputs[0], inputs[0]);
    check_shares(invalid, outputs[0], inputs[0]);
  } else {
    c10d::assertEmptyOutputTensorList(invalid, outputs);
  }
  return submit(
      {.operation = AcclOperation::kGather,
       .kind = c10d::OpType::GATHER,
       .timeout = opts.timeout,
       .asynchronous = opts.asyncOp,
       .inputs = inputs,
       .outputs = outputs},
      [list = is_root ? outputs[0] : Tensors(), input = inputs[0],
       root = static_cast<int>(opts.rootRank)](Communicator& communicator, Timeout timeout) {
        const Staged send(input, Use::kRead);
        const StagedParts recv(list, Use::kWrite);
        const Shape shape = shape_to_move(input);
        Collective collective{.kind = OperationKind::kGather,
                              .send = send.data(),
                              .count = shape.count,
                              .type = shape.type,
                              .root = root,
                              .timeout = timeout};
        if (!list.empty()) {
          collective.recv = recv.side_by_side();
          if (collective.recv == nullptr) {
            collective.recv_parts = recv.parts();
          }
        }
        communicator.run(collective);
        recv.write_back();
      });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                                    const c10d::ScatterOptions& opts) {
  const Complaint invalid = complain("scatter");
  c10d::assertRootRank(invalid, opts.rootRank, size_);
  c10d::assertSingleElementOutput(invalid, outputs);
  c10d::assertDense(invalid, outputs);
  const bool is_root = opts.rootRank == rank_;
  if (is_root) {
    c10d::assertScatterInputTensorList(invalid, inputs, size_);
    check_same_type(invalid, inputs[0], outputs[0]);
    check_shares(invalid, inputs[0], outputs[0]);
  } else {
    c10d::assertEmptyInputTensorList(invalid, inputs);
  }
  return submit(
      {.operation = AcclOperation::kScatter,
       .kind = c10d::OpType::SCATTER,
       .timeout = opts.timeout,
       .asynchronous = opts.asyncOp,
       .inputs = is_root ? inputs[0] : Tensors(),
       .outputs = {outputs}},
      [output = outputs[0], list = is_root ? inputs[0] : Tensors(),
       root = static_cast<int>(opts.rootRank)](Communicator& communicator, Timeout timeout) {
        const StagedParts send(list, Use::kRead);
        const Staged recv(output, Use::kWrite);
        const Shape shape = shape_to_move(output);
        Collective collective{.kind = OperationKind::kScatter,
                              .recv = recv.data(),
                              .count = shape.count,
                              .type = shape.type,
                              .root = root,
                              .timeout = timeout};
        if (!list.empty()) {
          collective.send = send.side_by_side();
          if (collective.send == nullptr) {
            collective.send_parts = send.parts();
          }
        }
        communicator.run(collective);
        recv.write_back();
      });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<std::int64_t>& output_splits,
                                                          std::vector<std::int64_t>& input_splits,
                                                          const c10d::AllToAllOptions& opts) {
  const Complaint invalid = complain("alltoall_base");
  c10d::assertDense(invalid, {output, input});
  check_same_type(invalid, {output}, input);
  c10d::checkSplitSizes(input_splits, input, size_);
  c10d::checkSplitSizes(output_splits, output, size_);
  TORCH_CHECK(!input_splits.empty() || !output_splits.empty() || input.numel() == output.numel(),
              "ProcessGroupAccl::alltoall_base: without splits, input and output must have the "
              "same number of elements, "
              "not ",
              input.numel(), " and ", output.numel());
  return submit(
      {.operation = AcclOperation::kAllToAll,
       .kind = c10d::OpType::ALLTOALL_BASE,
       .timeout = opts.timeout,
       .asynchronous = opts.asyncOp,
       .inputs = {input},
       .outputs = {{output}}},
      [output, input, output_splits, input_splits](Communicator& communicator, Timeout timeout) {
        const Staged send(input, Use::kRead);
        const Staged recv(output, Use::kWrite);
        const Shape shape = shape_to_move(input);
        Collective collective{
            .kind = OperationKind::kAllToAll, .type = shape.type, .timeout = timeout};
        std::vector<accl::Part> send_parts;
        std::vector<accl::Part> recv_parts;
        if (input_splits.empty() && output_splits.empty()) {
          collective.send = send.data();
          collective.recv = recv.data();
          collective.count = shape.count / static_cast<std::size_t>(communicator.size());
        } else {
          send_parts = rows_of(input, send.data(), input_splits, communicator.size());
          recv_parts = rows_of(output, recv.data(), output_splits, communicator.size());
          collective.send_parts = send_parts;
          collective.recv_parts = recv_parts;
        }
        communicator.run(collective);
        recv.write_back();
      });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllToAllOptions& opts) {
  const Complaint invalid = complain("alltoall");
  c10d::assertAllToAllTensorListSizes(invalid, inputs.size(), outputs.size(), size_);
  check_same_type(invalid, inputs, inputs[0]);
  check_same_type(invalid, outputs, inputs[0]);
  check_own_share(invalid, outputs[rank_], inputs[rank_], rank_);
  return submit({.operation = AcclOperation::kAllToAll,
                 .kind = c10d::OpType::ALLTOALL,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = inputs,
                 .outputs = {outputs}},
                [outputs, inputs](Communicator& communicator, Timeout timeout) {
                  const StagedParts send(inputs, Use::kRead);
                  const StagedParts recv(outputs, Use::kWrite);
                  communicator.run({.kind = OperationKind::kAllToAll,
                                    .type = shape_to_move(inputs[0]).type,
                                    .send_parts = send.parts(),
                                    .recv_parts = recv.parts(),
                                    .timeout = timeout});
                  recv.write_back();
                });
}

c10::intrusive_ptr<c10d::Work> AcclBackend::barrier(const c10d::BarrierOptions& opts) {
  return submit({.operation = AcclOperation::kBarrier,
                 .kind = c10d::OpType::BARRIER,
                 .timeout = opts.timeout,
                 .asynchronous = opts.asyncOp,
                 .inputs = {},
                 .outputs = {}},
                [](Communicator& communicator, Timeout timeout) {
                  communicator.run({.kind = OperationKind::kBarrier, .timeout = timeout});
                });
}

}  // namespace ljtrain
