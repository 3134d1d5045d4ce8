#include "trace/log.h"

#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/unique_fd.h"

#ifndef LJTRAIN_VERSION
#define LJTRAIN_VERSION "unknown"
#endif

namespace ljtrain::accl::trace {
namespace {

constexpr std::string_view kNcclVersion = "2.29.7";

struct SubsystemName {
  std::string_view name;
  std::uint32_t bits;
};
constexpr std::array<SubsystemName, 14> kSubsystems = {{{"INIT", kInit},
                                                        {"COLL", kColl},
                                                        {"P2P", kP2p},
                                                        {"SHM", kShm},
                                                        {"NET", kNet},
                                                        {"GRAPH", kGraph},
                                                        {"TUNING", kTuning},
                                                        {"ENV", kEnv},
                                                        {"ALLOC", kAlloc},
                                                        {"CALL", kCall},
                                                        {"PROXY", kProxy},
                                                        {"BOOTSTRAP", kBootstrap},
                                                        {"REG", kReg},
                                                        {"ALL", kAllSubsystems}}};
constexpr std::uint32_t kDefaultSubsystems = kInit | kBootstrap | kEnv;

// What ACCL heeds on one host. All others are named by warn_unsupported_environment().
constexpr std::array<std::string_view, 5> kSupportedVariables = {
    "NCCL_ALGO", "NCCL_COMM_BLOCKING", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"};

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

LogLevel parse_level(const char* text) {
  if (text == nullptr) {
    return LogLevel::kNone;
  }
  if (equals_ignoring_case(text, "VERSION")) {
    return LogLevel::kVersion;
  }
  if (equals_ignoring_case(text, "WARN")) {
    return LogLevel::kWarn;
  }
  // ABORT lies between INFO and TRACE in NCCL and has no lines of its own here.
  if (equals_ignoring_case(text, "INFO") || equals_ignoring_case(text, "ABORT")) {
    return LogLevel::kInfo;
  }
  return equals_ignoring_case(text, "TRACE") ? LogLevel::kTrace : LogLevel::kNone;
}

// "INIT,COLL" names what speaks, "^NET" what does not; names that are unknown are passed over, as
// in NCCL.
std::uint32_t parse_subsystems(const char* text) {
  if (text == nullptr) {
    return kDefaultSubsystems;
  }
  std::string_view rest = text;
  const bool inverted = rest.starts_with('^');
  if (inverted) {
    rest.remove_prefix(1);
  }
  std::uint32_t named = 0;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    for (const SubsystemName& subsystem : kSubsystems) {
      if (equals_ignoring_case(rest.substr(0, comma), subsystem.name)) {
        named |= subsystem.bits;
      }
    }
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return inverted ? ~named : named;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) {
    return "unknown";
  }
  const std::string_view whole = name.data();
  return std::string(whole.substr(0, whole.find('.')));
}

std::string expand_path(std::string_view pattern, const std::string& host) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const bool is_field = pattern[i] == '%' && i + 1 < pattern.size();
    if (!is_field) {
      path += pattern[i];
      continue;
    }
    switch (pattern[++i]) {
      case 'h':
        path += host;
        break;
      case 'p':
        path += std::to_string(getpid());
        break;
      case '%':
        path += '%';
        break;
      default:
        path += {'%', pattern[i]};
    }
  }
  return path;
}

class Log {
 public:
  // Never destroyed: threads may log while the process ends.
  static Log& instance() {
    alignas(Log) static std::byte memory[sizeof(Log)];
    static Log* const log = std::construct_at(reinterpret_cast<Log*>(memory));
    return *log;
  }

  Log() : host_(host_name()) { load(); }

  void load() {
    const std::scoped_lock lock(mutex_);
    const LogLevel level = parse_level(std::getenv("NCCL_DEBUG"));
    subsystems_.store(parse_subsystems(std::getenv("NCCL_DEBUG_SUBSYS")),
                      std::memory_order_relaxed);
    // The old file, if any, stays open: a thread may be writing to it.
    const char* file = std::getenv("NCCL_DEBUG_FILE");
    fd_.store(STDOUT_FILENO, std::memory_order_relaxed);
    if (file != nullptr && level > LogLevel::kVersion) {
      open_file(expand_path(file, host_));
    }
    level_.store(level, std::memory_order_relaxed);
  }

  LogLevel level() const { return level_.load(std::memory_order_relaxed); }
  std::uint32_t subsystems() const { return subsystems_.load(std::memory_order_relaxed); }
  const std::string& host() const { return host_; }

  void write(std::string_view line) const {
    const int fd = fd_.load(std::memory_order_relaxed);
    while (!line.empty()) {
      const ssize_t written = ::write(fd, line.data(), line.size());
      if (written < 0 && errno != EINTR) {
        return;  // nobody is left to be told
      }
      line.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
    }
  }

  std::once_flag version_announced;
  std::once_flag environment_checked;

 private:
  void open_file(const std::string& path) {
    for (const OpenFile& known : files_) {
      if (known.path == path) {
        fd_.store(known.fd.get(), std::memory_order_relaxed);
        return;
      }
    }
    base::UniqueFd fd(
        open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
    if (fd) {
      fd_.store(fd.get(), std::memory_order_relaxed);
      files_.push_back({path, std::move(fd)});
    }
  }

  struct OpenFile {
    std::string path;
    base::UniqueFd fd;
  };
  std::mutex mutex_;
  std::atomic<LogLevel> level_{LogLevel::kNone};
  std::atomic<std::uint32_t> subsystems_{0};
  std::atomic<int> fd_{STDOUT_FILENO};
  std::string host_;
  std::vector<OpenFile> files_;
};

// "host:pid:tid [rank]"
std::string origin(int rank) {
  return fmt::format("{}:{}:{} [{}]", Log::instance().host(), getpid(), gettid(), rank);
}

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

bool is_logged(LogLevel level, std::uint32_t subsystems) {
  const Log& log = Log::instance();
  return log.level() >= level && (level < LogLevel::kInfo || (log.subsystems() & subsystems) != 0);
}

void write_info(int rank, std::string_view text) {
  Log::instance().write(fmt::format("{} NCCL INFO {}\n", origin(rank), text));
}

void warn(int rank, std::string_view text, std::source_location where) {
  if (!is_logged(LogLevel::kWarn)) {
    return;
  }
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> stamp{};
  std::strftime(stamp.data(), stamp.size(), "%F %T", &local);
  Log::instance().write(fmt::format("\n[{}] {} {}:{} NCCL WARN {}\n", stamp.data(), origin(rank),
                                    file_name(where.file_name()), where.line(), text));
}

void announce_version(int rank) {
  Log& log = Log::instance();
  if (log.level() < (rank == 0 ? LogLevel::kVersion : LogLevel::kInfo)) {
    return;
  }
  std::call_once(log.version_announced, [&log, rank] {
    const std::string version =
        fmt::format("NCCL version {} (ACCL {})\n", kNcclVersion, LJTRAIN_VERSION);
    log.write(log.level() == LogLevel::kVersion ? version : origin(rank) + " " + version);
  });
}

void warn_unsupported_environment() {
  Log& log = Log::instance();
  if (!is_logged(LogLevel::kWarn)) {
    return;
  }
  std::call_once(log.environment_checked, [] {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view variable = *entry;
      const std::string_view name = variable.substr(0, variable.find('='));
      if (name.starts_with("NCCL_") &&
          std::ranges::find(kSupportedVariables, name) == kSupportedVariables.end()) {
        warn(kNoRank, fmt::format("{} is set, and ACCL does not have it: it has no effect", name));
      }
    }
  });
}

void reload() { Log::instance().load(); }

}  // namespace ljtrain::accl::trace
