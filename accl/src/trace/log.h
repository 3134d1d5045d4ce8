// What NCCL's users expect to read: NCCL_DEBUG (VERSION, WARN, INFO, TRACE), NCCL_DEBUG_SUBSYS and
// NCCL_DEBUG_FILE
// (%h: host, %p: process), in NCCL's line format:
//
//   host:pid:tid [rank] NCCL INFO text
//
// The environment is read once, at the first call. Any thread may log; one line is one write.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <source_location>
#include <string_view>
#include <utility>

namespace ljtrain::accl::trace {

enum class LogLevel : std::uint8_t { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3, kTrace = 5 };

// The names that NCCL_DEBUG_SUBSYS knows. By default INIT, BOOTSTRAP and ENV speak.
enum Subsystem : std::uint32_t {
  kInit = 1U << 0,
  kColl = 1U << 1,
  kP2p = 1U << 2,
  kShm = 1U << 3,
  kNet = 1U << 4,
  kGraph = 1U << 5,
  kTuning = 1U << 6,
  kEnv = 1U << 7,
  kAlloc = 1U << 8,
  kCall = 1U << 9,
  kProxy = 1U << 10,
  kBootstrap = 1U << 11,
  kReg = 1U << 12,
};
inline constexpr std::uint32_t kAllSubsystems = ~0U;

// The rank of a line that belongs to none.
inline constexpr int kNoRank = -1;

bool is_logged(LogLevel level, std::uint32_t subsystems = kAllSubsystems);

// Writes the line as it is; info() and warn() are the ways to call it.
void write_info(int rank, std::string_view text);

template <typename... Args>
void info(std::uint32_t subsystems, int rank, fmt::format_string<Args...> format, Args&&... args) {
  if (is_logged(LogLevel::kInfo, subsystems)) {
    write_info(rank, fmt::format(format, std::forward<Args>(args)...));
  }
}

// From WARN on. NCCL names the source file and line here, and so do we.
void warn(int rank, std::string_view text,
          std::source_location where = std::source_location::current());

// "NCCL version 2.29.7 (ACCL 0.1.0)", once per process: at VERSION and WARN by rank 0 alone, from
// INFO on by every rank. Called where a communicator is created.
void announce_version(int rank);

// Names each NCCL_* variable that is set and that ACCL does not have, once per process, from WARN
// on.
void warn_unsupported_environment();

// Reads the environment again (ncclResetDebugInit).
void reload();

}  // namespace ljtrain::accl::trace
