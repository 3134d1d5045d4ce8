// The handles that c10d's operations return: one collective, one message, or several of them
// together.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "accl/communicator.h"

namespace ljtrain {

class AcclEngine;

using TensorLists = std::vector<std::vector<at::Tensor>>;

// Turns ACCL's error into the exception that users of c10d expect, with ACCL's sentence.
std::exception_ptr as_c10d_exception(const accl::Error& error, std::chrono::milliseconds timeout);

// What the caller of an operation says about it.
struct OperationInfo {
  c10d::OpType kind = c10d::OpType::UNKNOWN;
  const char* title = nullptr;  // for the profiler; of static storage
  std::vector<at::Tensor> inputs = {};
  TensorLists outputs = {};
  std::chrono::milliseconds timeout{0};
  std::uint64_t sequence = 0;
};

// Results and futures, which all three share.
class AcclWork : public c10d::Work {
 public:
  AcclWork(int rank, OperationInfo info);

  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::uint64_t getSequencenumber() const override { return info_.sequence; }
  float getDuration() const override;
  void synchronize() override { wait(); }

  // True once the callbacks of the futures have run; inside of such a callback, at once.
  bool is_settled() const;
  // Completes futures, then the work. Only the first call counts.
  void settle(std::exception_ptr failure);

  const OperationInfo& info() const { return info_; }

 protected:
  void throw_failure() const;

  const OperationInfo info_;
  std::chrono::steady_clock::time_point began_{};
  std::chrono::steady_clock::time_point ended_{};

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::intrusive_ptr<c10::ivalue::Future> result_future_;
  bool settling_ = false;  // guarded by mutex_, as are the futures
  std::atomic<std::thread::id> settler_{};
  std::atomic<bool> settled_{false};
};

// A collective, run to its end by whichever thread takes it from the engine's queue.
class CollectiveWork final : public AcclWork {
 public:
  using Timeout = std::chrono::nanoseconds;
  using Body = std::function<void(accl::Communicator&, Timeout)>;

  CollectiveWork(int rank, OperationInfo info, std::shared_ptr<AcclEngine> engine, Body body);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;

  // For the engine. Does not settle the work.
  std::exception_ptr run(accl::Communicator& communicator);

 private:
  const std::shared_ptr<AcclEngine> engine_;
  Body body_;
};

// A message under way.
class MessageWork final : public AcclWork {
 public:
  // `finish` is called once after a receive that went well.
  MessageWork(int rank, OperationInfo info, std::shared_ptr<AcclEngine> engine,
              std::function<void()> finish);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  int sourceRank() const override;

  // For the engine.
  void attach(accl::MessageHandle handle) { handle_ = std::move(handle); }
  const accl::MessageHandle& handle() const { return handle_; }
  // Settles the work if the message has ended.
  bool settle_if_done();

 private:
  const std::shared_ptr<AcclEngine> engine_;
  accl::MessageHandle handle_;
  std::function<void()> finish_;
  std::atomic<bool> ended_once_{false};
};

// What endCoalescing() returns: done when all are.
class CoalescedWork final : public AcclWork {
 public:
  CoalescedWork(int rank, OperationInfo info, std::vector<c10::intrusive_ptr<AcclWork>> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<AcclWork>> works_;
};

}  // namespace ljtrain
