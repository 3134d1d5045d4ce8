#include "api/stream.h"

#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "accl/accl.h"
#include "api/leaked.h"

namespace ljtrain::accl::api {
namespace {

using Table = std::unordered_map<const void*, std::shared_ptr<Stream>>;
Table& table() { return leaked<Table>(); }

// cudaStreamLegacy and cudaStreamPerThread.
constexpr std::uintptr_t kLastSpecialValue = 2;

}  // namespace

cudaStream_t Stream::create() {
  auto stream = std::make_shared<Stream>();
  const auto handle = reinterpret_cast<cudaStream_t>(stream.get());
  const std::scoped_lock lock(global_mutex(GlobalMutex::kStreams));
  table().emplace(handle, std::move(stream));
  return handle;
}

std::shared_ptr<Stream> Stream::find(cudaStream_t handle) {
  if (reinterpret_cast<std::uintptr_t>(handle) <= kLastSpecialValue) {
    return nullptr;
  }
  const std::scoped_lock lock(global_mutex(GlobalMutex::kStreams));
  const auto found = table().find(handle);
  if (found == table().end()) {
    throw error(ErrorCode::kInvalidArgument,
                "stream {} is not one of acclStreamCreate, or has been destroyed: host buffers "
                "need a host stream or NULL",
                static_cast<const void*>(handle));
  }
  if (found->second->fork_generation_ != fork_generation()) {
    throw error(ErrorCode::kInvalidUsage,
                "stream {} belongs to the process that this one was forked from",
                static_cast<const void*>(handle));
  }
  return found->second;
}

void Stream::forget(const Stream& stream) {
  const std::scoped_lock lock(global_mutex(GlobalMutex::kStreams));
  table().erase(&stream);
}

void Stream::note_failure(const Failure& failure) {
  const std::scoped_lock lock(mutex_);
  if (!failure_) {
    failure_ = failure;
  }
}

std::optional<Failure> Stream::take_failure() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(failure_, std::nullopt);
}

namespace {

std::shared_ptr<Stream> require_stream(cudaStream_t handle) {
  std::shared_ptr<Stream> stream = Stream::find(handle);
  if (stream == nullptr) {
    throw error(ErrorCode::kInvalidArgument, "stream is NULL");
  }
  return stream;
}

void require_other_thread(const Stream& stream, const Worker& worker, const char* what) {
  if (worker.is_own_thread()) {
    throw error(ErrorCode::kInvalidUsage, "{} on stream {} by a function that runs on it", what,
                static_cast<const void*>(&stream));
  }
}

}  // namespace
}  // namespace ljtrain::accl::api

using namespace ljtrain::accl;
using namespace ljtrain::accl::api;

ncclResult_t acclStreamCreate(cudaStream_t* stream) {
  return guarded([&] {
    require_pointer(stream, "stream");
    *stream = Stream::create();
    return ncclSuccess;
  });
}

ncclResult_t acclStreamSynchronize(cudaStream_t handle) {
  return guarded([&] {
    const std::shared_ptr<Stream> stream = require_stream(handle);
    require_other_thread(*stream, stream->worker(), "acclStreamSynchronize");
    stream->worker().drain();
    const std::optional<Failure> failure = stream->take_failure();
    if (!failure) {
      return ncclSuccess;
    }
    set_thread_failure(*failure);
    return failure->result;
  });
}

ncclResult_t acclStreamQuery(cudaStream_t handle) {
  return guarded(
      [&] { return require_stream(handle)->worker().is_idle() ? ncclSuccess : ncclInProgress; });
}

ncclResult_t acclStreamEnqueue(cudaStream_t handle, void (*function)(void*), void* argument) {
  return guarded([&] {
    require_pointer(reinterpret_cast<const void*>(function), "function");
    const std::shared_ptr<Stream> stream = require_stream(handle);
    stream->worker().push([function, argument] { function(argument); });
    return ncclSuccess;
  });
}

ncclResult_t acclStreamDestroy(cudaStream_t handle) {
  return guarded([&] {
    const std::shared_ptr<Stream> stream = require_stream(handle);
    require_other_thread(*stream, stream->worker(), "acclStreamDestroy");
    Stream::forget(*stream);
    stream->worker().drain();
    return ncclSuccess;
  });
}
