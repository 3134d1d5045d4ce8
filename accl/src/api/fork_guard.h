// Which process something belongs to, told by counting forks: a load instead of a getpid().
#pragma once

#include <cstdint>
#include <mutex>

namespace ljtrain::accl::api {

// Changes in every forked child.
std::uint32_t fork_generation();

// The mutexes of the library's global tables: held over fork(), so that a child finds them whole
// and unlocked. Locked in the order of the enumerators.
enum class GlobalMutex : std::uint8_t { kCommunicators, kStreams, kWindows, kIssue, kCount };
std::mutex& global_mutex(GlobalMutex which);

}  // namespace ljtrain::accl::api
