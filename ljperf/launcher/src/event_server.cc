#include "launcher/event_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/errors.h"
#include "event_reader.h"

namespace ljtrain::ljperf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBacklog = 1024;
constexpr std::size_t kMostNewcomers = 8192;
// A connection that does not say who it is by then is none of ours.
constexpr std::chrono::seconds kHelloTimeout{20};
constexpr std::size_t kLargestReply = std::size_t{16} << 20;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses look_up(const char* host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  int error = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  return {error == 0 ? found : nullptr, &::freeaddrinfo};
}

bool send_all(int fd, std::string_view data) {
  while (!data.empty()) {
    ssize_t count = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EAGAIN) {
      pollfd writable{fd, POLLOUT, 0};
      ::poll(&writable, 1, 1000);
      if (writable.revents == 0) {
        return false;  // a peer that reads nothing must not hold up the others
      }
      continue;
    }
    if (count < 0 && errno != EINTR) {
      return false;
    }
    data.remove_prefix(count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  return true;
}

// The connection, so that a host that vanishes is noticed within half a minute.
void keep_alive(int fd) {
  int on = 1;
  int idle = 10;
  int interval = 5;
  int probes = 4;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

int port_of(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

struct EventServer::Newcomer {
  base::UniqueFd fd;
  std::string text;
  Clock::time_point since;
};

struct EventServer::Seat {
  std::optional<RankIdentity> identity;
  std::unique_ptr<EventReader> events;
};

EventServer::EventServer(const std::string& address, int port, std::string run, int ranks,
                         const base::OrderedJson& reply)
    : run_(std::move(run)), reply_(reply.dump() + "\n"), seats_(static_cast<std::size_t>(ranks)) {
  Addresses where = look_up(address.empty() ? "0.0.0.0" : address.c_str(), port, AI_PASSIVE);
  int on = 1;
  if (where != nullptr) {
    listener_.reset(::socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (!listener_ || ::bind(listener_.get(), where->ai_addr, where->ai_addrlen) != 0 ||
      ::listen(listener_.get(), kBacklog) != 0) {
    throw base::run_error("cannot listen on {}:{} for the ranks' reports: {}",
                          address.empty() ? "0.0.0.0" : address, port, std::strerror(errno));
  }
  port_ = port_of(listener_.get());
}

EventServer::~EventServer() = default;

void EventServer::add_to(std::vector<pollfd>& polled) const {
  polled.push_back({listener_.get(), POLLIN, 0});
  for (const Newcomer& newcomer : newcomers_) {
    polled.push_back({newcomer.fd.get(), POLLIN, 0});
  }
  for (const Seat& seat : seats_) {
    if (seat.events != nullptr && !seat.events->closed()) {
      polled.push_back({seat.events->fd(), POLLIN, 0});
    }
  }
}

void EventServer::accept_all() {
  while (newcomers_.size() < kMostNewcomers) {
    base::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      return;
    }
    keep_alive(fd.get());
    newcomers_.push_back({std::move(fd), "", Clock::now()});
  }
}

void EventServer::seat(Newcomer& newcomer, const base::Json& hello) {
  bool ours = hello.is_object() && hello.value("run", base::Json()) == run_ &&
              hello.contains("rank") && hello["rank"].is_number_integer();
  auto rank = ours ? hello["rank"].get<long long>() : -1;
  if (rank < 0 || rank >= static_cast<long long>(seats_.size())) {
    return;
  }
  Seat& seat = seats_[static_cast<std::size_t>(rank)];
  if (seat.identity.has_value() || !send_all(newcomer.fd.get(), reply_)) {
    return;
  }
  RankIdentity identity;
  if (hello.contains("host") && hello["host"].is_string()) {
    identity.host = hello["host"].get<std::string>();
  }
  if (hello.contains("cpus") && hello["cpus"].is_array()) {
    for (const base::Json& cpu : hello["cpus"]) {
      if (cpu.is_number_integer()) {
        identity.cpus.push_back(cpu.get<int>());
      }
    }
  }
  seat.identity = std::move(identity);
  seat.events = std::make_unique<EventReader>(std::move(newcomer.fd));
}

void EventServer::serve(const std::function<void(int rank, const base::Json& event)>& on_event) {
  constexpr std::size_t kLongestHello = 65536;
  accept_all();
  for (Newcomer& newcomer : newcomers_) {
    char byte = 0;
    // Byte by byte up to the end of the line: what follows belongs to the rank's events.
    while (newcomer.fd && newcomer.text.size() < kLongestHello) {
      ssize_t count = ::recv(newcomer.fd.get(), &byte, 1, 0);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
        break;
      }
      if (count <= 0) {
        newcomer.fd.reset();
      } else if (byte == '\n') {
        seat(newcomer, base::Json::parse(newcomer.text, nullptr, /*allow_exceptions=*/false));
        newcomer.fd.reset();
      } else {
        newcomer.text += byte;
      }
    }
  }
  std::erase_if(newcomers_, [](const Newcomer& newcomer) {
    return !newcomer.fd || newcomer.text.size() >= kLongestHello ||
           Clock::now() - newcomer.since > kHelloTimeout;
  });
  for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
    if (seats_[rank].events != nullptr) {
      seats_[rank].events->read(
          [&](const base::Json& event) { on_event(static_cast<int>(rank), event); });
    }
  }
}

const std::optional<RankIdentity>& EventServer::identity(int rank) const {
  return seats_.at(static_cast<std::size_t>(rank)).identity;
}

bool EventServer::closed(int rank) const {
  const Seat& seat = seats_.at(static_cast<std::size_t>(rank));
  return seat.events != nullptr && seat.events->closed();
}

namespace {

base::UniqueFd connect_to(const std::string& host, int port) {
  Addresses where = look_up(host.c_str(), port, 0);
  if (where == nullptr) {
    return {};
  }
  base::UniqueFd fd(::socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd && ::connect(fd.get(), where->ai_addr, where->ai_addrlen) == 0) {
    return fd;
  }
  return {};
}

}  // namespace

std::pair<base::UniqueFd, base::Json> report_to(const std::string& host, int port,
                                                const base::Json& hello,
                                                std::chrono::milliseconds patience) {
  Clock::time_point deadline = Clock::now() + patience;
  base::UniqueFd fd;
  while (!(fd = connect_to(host, port))) {
    if (Clock::now() > deadline) {
      throw base::run_error(
          "the launcher at {}:{} is not reached from here; it must be open between the hosts of "
          "the run",
          host, port);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  keep_alive(fd.get());
  send_all(fd.get(), hello.dump() + "\n");
  std::string reply;
  char byte = 0;
  while (reply.size() < kLargestReply) {
    pollfd readable{fd.get(), POLLIN, 0};
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    ::poll(&readable, 1, static_cast<int>(std::max<long long>(0, left.count())));
    ssize_t count = readable.revents == 0 ? 0 : ::recv(fd.get(), &byte, 1, 0);
    if (count <= 0) {
      break;
    }
    if (byte == '\n') {
      return {std::move(fd), base::Json::parse(reply)};
    }
    reply += byte;
  }
  throw base::run_error(
      "the launcher at {}:{} does not know this rank: another run listens there, or the rank was "
      "started twice",
      host, port);
}

}  // namespace ljtrain::ljperf
