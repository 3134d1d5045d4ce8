// What no file tells: the clock, names, hosts, NVML, and the status of the stack.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/timex.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <sstream>

#include "base/errors.h"
#include "base/unique_fd.h"
#include "doctor/machine.h"

namespace ljtrain::ljperf {
namespace {

// Short enough for an answer within two seconds, long enough for a slow name server.
constexpr std::chrono::milliseconds kNameTimeout{700};
constexpr std::chrono::milliseconds kStatusTimeout{1200};
constexpr int kReachTimeoutMs = 700;
constexpr const char* kPort = "29500";  // torch.distributed's own

std::optional<ClockState> read_clock() {
  constexpr double kMicro = 1e-6;
  timex state{};
  int answer = ::adjtimex(&state);
  if (answer < 0) {
    return std::nullopt;
  }
  return ClockState{.synchronised = answer != TIME_ERROR && (state.status & STA_UNSYNC) == 0,
                    .error_s = static_cast<double>(state.esterror) * kMicro};
}

// By getent, which can be ended when a name server does not answer; getaddrinfo cannot.
std::vector<std::string> resolve_name(const std::string& host) {
  base::SpawnOptions options;
  options.argv = {"getent", "ahosts", "--", host};
  options.environment = base::current_environment();
  std::vector<std::string> addresses;
  try {
    std::istringstream lines(base::run_captured(options, "", kNameTimeout).output);
    for (std::string line; std::getline(lines, line);) {
      addresses.push_back(line.substr(0, line.find(' ')));
    }
  } catch (const base::RunError&) {
    return {};
  }
  return addresses;
}

struct AddressesDeleter {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

// Binds to the interface's address of that family, as NCCL does.
bool bind_to(int fd, int family, const std::string& interface) {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) {
    return false;
  }
  std::unique_ptr<ifaddrs, AddressesDeleter> list(raw);
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == family &&
        interface == entry->ifa_name) {
      socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      return ::bind(fd, entry->ifa_addr, size) == 0;
    }
  }
  return false;
}

struct AddressInfoDeleter {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

// A refused connection is an answer, too: the host is there.
std::string reach_host(const std::string& address, const std::string& interface) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (::getaddrinfo(address.c_str(), kPort, &hints, &raw) != 0) {
    return "no address";
  }
  std::unique_ptr<addrinfo, AddressInfoDeleter> target(raw);
  base::UniqueFd fd(::socket(raw->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    return std::strerror(errno);
  }
  if (!interface.empty() && !bind_to(fd.get(), raw->ai_family, interface)) {
    return fmt::format("no address of its kind on {}", interface);
  }
  if (::connect(fd.get(), raw->ai_addr, raw->ai_addrlen) == 0 || errno == ECONNREFUSED) {
    return "";
  }
  if (errno != EINPROGRESS) {
    return std::strerror(errno);
  }
  pollfd waiting{fd.get(), POLLOUT, 0};
  if (::poll(&waiting, 1, kReachTimeoutMs) <= 0) {
    return fmt::format("no answer from {} within {} ms", address, kReachTimeoutMs);
  }
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 || error == ECONNREFUSED ? "" : std::strerror(error);
}

std::optional<base::Json> ask_status(const std::filesystem::path& python) {
  base::SpawnOptions options;
  options.argv = {python.string(), "-m", "ljtrain.status"};
  options.environment = base::current_environment();
  options.environment["PYTHONSAFEPATH"] = "1";  // not a folder `ljtrain` where this was typed
  try {
    base::Captured captured = base::run_captured(options, "", kStatusTimeout);
    base::Json status = base::Json::parse(captured.output, nullptr, /*allow_exceptions=*/false);
    return status.is_object() ? std::optional(std::move(status)) : std::nullopt;
  } catch (const base::RunError&) {
    return std::nullopt;
  }
}

}  // namespace

Machine real_machine() {
  Machine machine;
  machine.environment = base::current_environment();
  machine.now = std::time(nullptr);
  std::error_code error;
  machine.own_program = std::filesystem::read_symlink("/proc/self/exe", error);
  machine.gpus = read_gpu_report();
  machine.clock = read_clock;
  machine.resolve = resolve_name;
  machine.reach = reach_host;
  machine.stack_status = ask_status;
  return machine;
}

}  // namespace ljtrain::ljperf
