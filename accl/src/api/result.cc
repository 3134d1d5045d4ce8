#include "api/result.h"

#include <atomic>
#include <utility>

#include "api/group.h"

namespace ljtrain::accl::api {
namespace {

std::atomic<std::uint64_t> failures{0};
thread_local Failure last_failure;

}  // namespace

ncclResult_t to_result(ErrorCode code) {
  switch (code) {
    case ErrorCode::kSystem:
      return ncclSystemError;
    case ErrorCode::kInternal:
      return ncclInternalError;
    case ErrorCode::kInvalidArgument:
      return ncclInvalidArgument;
    case ErrorCode::kInvalidUsage:
    case ErrorCode::kAborted:
      return ncclInvalidUsage;
    case ErrorCode::kRemote:
    case ErrorCode::kTimeout:
      return ncclRemoteError;
  }
  return ncclInternalError;
}

Failure make_failure(ncclResult_t result, std::string text) {
  return {result, std::move(text), failures.fetch_add(1, std::memory_order_relaxed) + 1};
}

Failure make_failure(const std::exception& cause) {
  if (const auto* failed = dynamic_cast<const Error*>(&cause)) {
    return make_failure(to_result(failed->code()), failed->what());
  }
  if (dynamic_cast<const std::bad_alloc*>(&cause) != nullptr) {
    return make_failure(ncclSystemError, "out of memory");
  }
  return make_failure(ncclInternalError, cause.what());
}

void set_thread_failure(const Failure& failure) { last_failure = failure; }
const Failure& thread_failure() { return last_failure; }

ncclResult_t fail(const Failure& failure, std::source_location where) {
  set_thread_failure(failure);
  note_group_failure(failure.result);
  trace::warn(trace::kNoRank, failure.text, where);
  return failure.result;
}

void require_pointer(const void* pointer, const char* name) {
  if (pointer == nullptr) {
    throw error(ErrorCode::kInvalidArgument, "{} is NULL", name);
  }
}

}  // namespace ljtrain::accl::api
