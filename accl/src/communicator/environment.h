// ACCL's settings in the environment, read strictly: a value that cannot be meant is an error that
// says what would be, not a silent default.
#pragma once

#include <chrono>
#include <cstdint>

namespace ljtrain::accl::environment {

// Bytes: "262144", "256KiB", "1M". Throws kInvalidArgument for anything else, and outside the range.
std::uint64_t bytes(const char* name, std::uint64_t otherwise, std::uint64_t least,
                    std::uint64_t most);
// Whether a switch is on: 1, true, yes, on; or off: 0, false, no, off, or not set. Throws
// kInvalidArgument for anything else.
bool is_on(const char* name);

// ACCL_TIMEOUT: seconds that an operation, or the making of a communicator, may take. Throws
// kInvalidArgument for what is not a positive number.
std::chrono::nanoseconds timeout();

// Longer than any job, and short enough to be added to.
inline constexpr std::chrono::hours kLongestTimeout{24 * 3650};

}  // namespace ljtrain::accl::environment
