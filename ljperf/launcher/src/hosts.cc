#include "launcher/hosts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/errors.h"
#include "base/unique_fd.h"

namespace ljtrain::ljperf {
namespace {

// What connect() on a datagram socket looks up: any port will do.
constexpr const char* kAnyPort = "9";

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  int error = ::getaddrinfo(host.c_str(), kAnyPort, &hints, &found);
  if (error != 0) {
    throw base::run_error("the host {} does not resolve to an address: {}", host,
                          ::gai_strerror(error));
  }
  return {found, &::freeaddrinfo};
}

std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof text);
  } else if (address->sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
                sizeof text);
  }
  return text;
}

}  // namespace

std::string resolve(const std::string& host) { return numeric(look_up(host)->ai_addr); }

bool is_this_host(const std::string& host) { return !interface_with(resolve(host)).empty(); }

std::string address_towards(const std::string& host) {
  Addresses target = look_up(host);
  base::UniqueFd fd(::socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage ours{};
  socklen_t size = sizeof ours;
  if (!fd || ::connect(fd.get(), target->ai_addr, target->ai_addrlen) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&ours), &size) != 0) {
    throw base::run_error("there is no route from here to {}: {}", host, std::strerror(errno));
  }
  return numeric(reinterpret_cast<sockaddr*>(&ours));
}

std::string interface_with(const std::string& address) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return "";
  }
  std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  for (ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && numeric(entry->ifa_addr) == address) {
      return entry->ifa_name;
    }
  }
  return "";
}

}  // namespace ljtrain::ljperf
