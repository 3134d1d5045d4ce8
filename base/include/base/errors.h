// The errors a user sees. Each carries one sentence: what is wrong, where, and how to mend it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace ljtrain::base {

// Exit codes of every command (docs/ljperf.md).
enum ExitCode : int { kDone = 0, kFailed = 1, kBadInput = 2, kInterrupted = 130 };

// Bad usage or bad input: nothing was started. Exit code 2.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The thing measured or checked failed. Exit code 1.
class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// user_error("no such model: {}", name) builds a UserError to throw.
template <typename... Args>
UserError user_error(fmt::format_string<Args...> format, Args&&... args) {
  return UserError(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
RunError run_error(fmt::format_string<Args...> format, Args&&... args) {
  return RunError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ljtrain::base
