// Host streams: what passes as cudaStream_t.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "accl/nccl.h"
#include "api/fork_guard.h"
#include "api/result.h"
#include "api/worker.h"

namespace ljtrain::accl::api {

class Stream {
 public:
  static cudaStream_t create();
  // nullptr for the NULL stream and CUDA's special values of it. Throws kInvalidArgument for what
  // is no stream, kInvalidUsage in a forked child.
  static std::shared_ptr<Stream> find(cudaStream_t handle);
  // Takes the handle out of use.
  static void forget(const Stream& stream);

  Stream() : worker_("accl-stream") {}

  Worker& worker() { return worker_; }
  // Keeps the first one until it is taken.
  void note_failure(const Failure& failure);
  std::optional<Failure> take_failure();

 private:
  const std::uint32_t fork_generation_ = fork_generation();
  std::mutex mutex_;
  std::optional<Failure> failure_;
  Worker worker_;  // last: its tasks use the rest until it has ended
};

}  // namespace ljtrain::accl::api
