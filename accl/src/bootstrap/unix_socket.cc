#include "bootstrap/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "accl/error.h"

namespace ljtrain::accl::bootstrap {
namespace {

constexpr int kBacklog = 1024;

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

// A leading zero byte makes the name abstract.
Address abstract(const std::string& name) {
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

base::UniqueFd new_socket() {
  base::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) {
    throw error(ErrorCode::kSystem, "cannot open a Unix socket: {} (ulimit -n?)",
                std::strerror(errno));
  }
  return socket;
}

}  // namespace

std::optional<base::UniqueFd> listen_at(const std::string& name) {
  base::UniqueFd socket = new_socket();
  const Address address = abstract(name);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) != 0) {
    if (errno == EADDRINUSE) {
      return std::nullopt;
    }
    throw error(ErrorCode::kSystem, "cannot bind a Unix socket: {}", std::strerror(errno));
  }
  if (::listen(socket.get(), kBacklog) != 0) {
    throw error(ErrorCode::kSystem, "cannot listen on a Unix socket: {}", std::strerror(errno));
  }
  return socket;
}

std::optional<base::UniqueFd> connect_to(const std::string& name) {
  base::UniqueFd socket = new_socket();
  const Address address = abstract(name);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) !=
      0) {
    return std::nullopt;
  }
  return socket;
}

bool is_same_user(int socket) {
  ucred other{};
  socklen_t length = sizeof(other);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
         (other.uid == ::geteuid() || other.uid == 0 || ::geteuid() == 0);
}

bool send_packet(int socket, std::span<const std::byte> packet, int descriptor) {
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return std::cmp_equal(sent, packet.size());
}

Packet receive_packet(int socket, std::span<std::byte> buffer) {
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received = -1;
  do {
    received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  Packet packet;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); received > 0 && header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
      packet.descriptor.reset(descriptor);
    }
  }
  if (received > 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
    throw error(ErrorCode::kSystem, "no descriptor left for the shared memory (ulimit -n)");
  }
  packet.bytes = received > 0 ? static_cast<std::size_t>(received) : 0;
  return packet;
}

}  // namespace ljtrain::accl::bootstrap
