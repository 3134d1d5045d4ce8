// The one exception of ACCL: a code that maps to ncclResult_t and a sentence for people.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ljtrain::accl {

enum class ErrorCode : unsigned char {
  kSystem,           // the operating system refused: ncclSystemError
  kInternal,         // a fault of ACCL itself: ncclInternalError
  kInvalidArgument,  // ncclInvalidArgument
  kInvalidUsage,     // ranks that disagree, use after abort, in a forked child: ncclInvalidUsage
  kRemote,           // a peer is gone or has aborted: ncclRemoteError
  kTimeout,          // a deadline passed; `ranks` holds those who are missing: ncclRemoteError
  kAborted,          // this rank's own abort ended the operation: ncclInvalidUsage
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& sentence, std::vector<int> ranks = {})
      : std::runtime_error(sentence), code_(code), ranks_(std::move(ranks)) {}
  ErrorCode code() const { return code_; }
  // The ranks the error is about (missing, dead, in disagreement); may be empty.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  ErrorCode code_;
  std::vector<int> ranks_;
};

// error(ErrorCode::kSystem, "mmap of {} bytes: {}", n, strerror(errno)) builds an Error to throw.
template <typename... Args>
Error error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ljtrain::accl
