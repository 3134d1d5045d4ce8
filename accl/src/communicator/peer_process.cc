#include "communicator/peer_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

namespace ljtrain::accl {
namespace {

// What follows the command's name, which may itself hold blanks and parentheses.
std::string stat_after_name(int pid) {
  const base::UniqueFd file(
      ::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  // NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): /proc answers at once
  const ssize_t length = file ? ::read(file.get(), text.data(), text.size() - 1) : 0;
  if (length <= 0) {
    return {};
  }
  const std::string_view whole(text.data(), static_cast<std::size_t>(length));
  const auto name_end = whole.rfind(')');
  return name_end == std::string_view::npos || name_end + 2 >= whole.size()
             ? std::string()
             : std::string(whole.substr(name_end + 2));
}

}  // namespace

std::uint64_t process_start_time(int pid) {
  const std::string text = stat_after_name(pid);
  // The text starts with field 3.
  std::size_t at = 0;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) {
    at = text.find(' ', at);
    at = at == std::string::npos ? at : at + 1;
  }
  return text.empty() || at == std::string::npos ? 0
                                                 : std::strtoull(text.c_str() + at, nullptr, 10);
}

char process_state(int pid) {
  const std::string text = stat_after_name(pid);
  return text.empty() ? '\0' : text[0];
}

PeerProcess::PeerProcess(int pid, std::uint64_t start_time)
    : pid_(pid),
      start_time_(start_time),
      pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  // The pid may have been reused between the peer's hello and here.
  if (pidfd_ && process_start_time(pid) != start_time) {
    pidfd_.reset();
  }
}

bool PeerProcess::is_alive() const {
  if (pidfd_) {
    pollfd request{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&request, 1, 0) == 0;
  }
  const char state = process_state(pid_);
  return state != '\0' && state != 'Z' && process_start_time(pid_) == start_time_;
}

std::shared_ptr<PeerProcess> PeerProcess::watch(int pid, std::uint64_t start_time) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::uint64_t>, std::weak_ptr<PeerProcess>> known;
  const std::scoped_lock lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = known[{pid, start_time}];
  std::shared_ptr<PeerProcess> process = entry.lock();
  if (!process) {
    process = std::make_shared<PeerProcess>(pid, start_time);
    entry = process;
  }
  return process;
}

}  // namespace ljtrain::accl
