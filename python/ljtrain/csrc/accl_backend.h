// The c10d backend `accl`: process groups of CPU tensors on ljtrain::accl::Communicator.
//
// Bound to c10d's C++ ABI, which is not stable: module.cc refuses to load under another minor
// version of PyTorch.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "accl_engine.h"

namespace ljtrain {

// As long as its base is PyTorch's and these two come next, it has the layout of
// ProcessGroupGloo::Options (2.13).
struct AcclOptions : c10d::Backend::Options {
  explicit AcclOptions(std::chrono::milliseconds group_timeout)
      : c10d::Backend::Options("accl", group_timeout) {}
  std::vector<std::shared_ptr<void>> devices;
  int threads = 2;  // what Gloo says, and DDP logs
};

// The profiler's names, and what is counted.
enum class AcclOperation : unsigned char {
  kAllReduce,
  kSparseAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kReceive,
  kReceiveAny,
};
inline constexpr int kAcclOperations = 13;

// What a group has served; outlives the group.
struct AcclCounters {
  std::array<std::atomic<std::int64_t>, kAcclOperations> calls{};
  std::atomic<std::int64_t> bytes{0};
};

struct AcclReport {
  std::string name = {};
  int rank = 0;
  int ranks = 0;
  bool stands_for_gloo = false;
  bool open = false;
  std::map<std::string, std::int64_t> calls = {};  // by operation, those that were called
  std::int64_t bytes = 0;
};
// All groups that this process has made.
std::vector<AcclReport> accl_reports();
// Ends the threads of all groups before the interpreter goes: callbacks need it.
void accl_at_exit();

class AcclBackend final : public c10d::Backend {
 public:
  using Ranks = std::vector<std::uint64_t>;

  // Waits for all ranks. Throws ElsewhereError (accl_rendezvous.h) or DistBackendError.
  // `stands_for_gloo`: it serves a group that asked for Gloo, so what programs look for is called
  // as there.
  static c10::intrusive_ptr<AcclBackend> create(const c10::intrusive_ptr<c10d::Store>& store,
                                                int rank, int size,
                                                std::chrono::milliseconds timeout,
                                                const std::string& name, bool stands_for_gloo);
  AcclBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
              c10::intrusive_ptr<AcclOptions> options,
              std::shared_ptr<accl::Communicator> communicator, bool stands_for_gloo);
  ~AcclBackend() override;

  const std::string getBackendName() const override { return "accl"; }
  // A copy: ProcessGroup::splitGroup() writes the new group's name into it. Python gets options()
  // itself.
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<AcclOptions>(*options_);
  }
  c10::intrusive_ptr<Options> options() const { return options_; }
  bool stands_for_gloo() const { return stands_for_gloo_; }
  // A group that stands for Gloo gives one request per message, as programs written for Gloo
  // expect.
  bool supportsCoalescing() const override { return !stands_for_gloo_; }
  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const override { return true; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  // The numbers start at 0 on every rank and count collectives.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void enableCollectivesTiming() override {}  // a work always knows how long it ran
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override;
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& opts, const int& rank,
                                    const int& size) override;
  c10::intrusive_ptr<Backend> shrink(const std::vector<std::int64_t>& ranks_to_exclude,
                                     int shrink_flags,
                                     const c10::intrusive_ptr<Options>& opts_override) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  // NOLINTBEGIN(google-default-arguments): c10d's
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& opts = c10d::BroadcastOptions()) override;
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& opts = c10d::AllreduceOptions()) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& opts = c10d::AllreduceOptions()) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceCoalescedOptions& opts = c10d::AllreduceCoalescedOptions()) override;
  c10::intrusive_ptr<c10d::Work> reduce(
      std::vector<at::Tensor>& tensors,
      const c10d::ReduceOptions& opts = c10d::ReduceOptions()) override;
  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input,
      const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>& output_lists, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& opts = c10d::AllgatherOptions()) override;
  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::GatherOptions& opts = c10d::GatherOptions()) override;
  c10::intrusive_ptr<c10d::Work> scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ScatterOptions& opts = c10d::ScatterOptions()) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions()) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input,
      const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions()) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& opts = c10d::ReduceScatterOptions()) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
      std::vector<std::int64_t>& input_splits,
      const c10d::AllToAllOptions& opts = c10d::AllToAllOptions()) override;
  c10::intrusive_ptr<c10d::Work> alltoall(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllToAllOptions& opts = c10d::AllToAllOptions()) override;
  c10::intrusive_ptr<c10d::Work> barrier(
      const c10d::BarrierOptions& opts = c10d::BarrierOptions()) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts = c10d::BarrierOptions(),
                        bool wait_all_ranks = false) override;
  // NOLINTEND(google-default-arguments)
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

  const std::shared_ptr<AcclEngine>& engine() const { return engine_; }

 private:
  // A collective as its method describes it.
  struct Call {
    AcclOperation operation;
    c10d::OpType kind;
    std::chrono::milliseconds timeout;
    bool asynchronous;
    std::vector<at::Tensor> inputs;
    TensorLists outputs;
  };

  c10::intrusive_ptr<c10d::Work> submit(Call call, CollectiveWork::Body body);
  c10::intrusive_ptr<AcclWork> start(AcclOperation operation, accl::Message message,
                                     const at::Tensor& tensor);
  const char* title(AcclOperation operation) const;
  void count(AcclOperation operation, std::size_t bytes);
  std::chrono::milliseconds limit(std::chrono::milliseconds asked) const;
  c10::intrusive_ptr<AcclBackend> derive(const std::string& prefix,
                                         const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         int size, const c10::intrusive_ptr<Options>& opts,
                                         Ranks global_ranks);
  Ranks global_ranks_of(const std::vector<int>& ranks) const;
  void monitor_ranks(std::chrono::milliseconds timeout, bool wait_all_ranks, int hello_tag,
                     int verdict_tag);
  void report_to_monitor(int hello_tag, int verdict_tag);

  // DDP's logger casts what calls itself gloo to ProcessGroupGloo, unchecked, and reads
  // options_->threads. These two are where ProcessGroupGloo has them, so that it finds a number
  // there.
  std::shared_ptr<void> gloo_store_;
  const c10::intrusive_ptr<AcclOptions> options_;

  const c10::intrusive_ptr<c10d::Store> store_;
  const bool stands_for_gloo_;
  const std::shared_ptr<AcclCounters> counters_;
  std::shared_ptr<AcclEngine> engine_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<int> monitored_barriers_{0};
  int shrinks_ = 0;
  bool coalescing_ = false;
  std::vector<c10::intrusive_ptr<AcclWork>> coalesced_;
};

}  // namespace ljtrain
