// Sequenced packets over abstract Unix sockets, with one descriptor on board.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/unique_fd.h"

namespace ljtrain::accl::bootstrap {

// Listens under an abstract name; nothing when the name is taken. Throws kSystem.
std::optional<base::UniqueFd> listen_at(const std::string& name);
// Nothing when nobody listens there (yet).
std::optional<base::UniqueFd> connect_to(const std::string& name);
// Whether the other end runs as this user (or one of the two is root).
bool is_same_user(int socket);

// False when the other end is gone.
bool send_packet(int socket, std::span<const std::byte> packet, int descriptor = -1);
struct Packet {
  std::size_t bytes = 0;  // 0: the other end is gone
  base::UniqueFd descriptor;
};
Packet receive_packet(int socket, std::span<std::byte> buffer);

}  // namespace ljtrain::accl::bootstrap
