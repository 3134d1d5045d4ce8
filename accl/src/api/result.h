// From exceptions to ncclResult_t, and the sentences that ncclGetLastError hands out.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <source_location>
#include <string>
#include <utility>

#include "accl/error.h"
#include "accl/nccl.h"
#include "trace/log.h"

// The nccl* name of a function is a weak alias of its pnccl* twin, so that a profiler may define
// the first and call the second, as with NVIDIA's library.
#define ACCL_ALIAS(name) \
  extern "C" __attribute__((weak, alias("p" #name), visibility("default"))) decltype(p##name) name

namespace ljtrain::accl::api {

ncclResult_t to_result(ErrorCode code);

// An error and when it was noted, so that the newer of two can be told.
struct Failure {
  ncclResult_t result = ncclSuccess;
  std::string text;
  std::uint64_t sequence = 0;
};
Failure make_failure(ncclResult_t result, std::string text);
Failure make_failure(const std::exception& cause);

// The last error of the calling thread.
void set_thread_failure(const Failure& failure);
const Failure& thread_failure();

// Notes a failed call for this thread and for the group it belongs to, if any; logs it. Returns its
// result.
ncclResult_t fail(const Failure& failure, std::source_location where);

// Every exported function runs its body, which returns ncclResult_t, in here: no exception leaves
// the library.
template <typename Body>
ncclResult_t guarded(Body&& body,
                     std::source_location where = std::source_location::current()) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (const std::exception& cause) {
    return fail(make_failure(cause), where);
  } catch (...) {
    return fail(make_failure(ncclInternalError, "an exception of an unknown type"), where);
  }
}

// Checks of arguments: throw kInvalidArgument with a sentence that names the argument.
void require_pointer(const void* pointer, const char* name);
template <class T>
void require_pointer(T* const* pointer, const char* name) {
  require_pointer(static_cast<const void*>(pointer), name);
}

}  // namespace ljtrain::accl::api
