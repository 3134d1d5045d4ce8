// Which network interfaces collectives use: NCCL's rules, and those of the releases.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "image/release.h"

namespace ljtrain::image {

// NCCL_SOCKET_IFNAME: a comma list of prefixes; a leading ^ excludes, = asks for whole names, ^=
// both, for the whole list (NVIDIA NCCL, environment variables).
struct InterfaceFilter {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string> names;
};
InterfaceFilter parse_interface_filter(std::string_view text);
bool matches(const InterfaceFilter& filter, std::string_view interface);

// What NCCL takes of `interfaces`, in their order.
std::vector<std::string> select_interfaces(const InterfaceFilter& filter,
                                           std::span<const std::string> interfaces);
// What it takes when the variable is unset: ib*, else all but docker, lo and virbr, else docker,
// else lo.
std::vector<std::string> default_interfaces(std::span<const std::string> interfaces);

// Interfaces that lead to no other host: lo, and the bridges and pairs of containers.
bool leads_nowhere(std::string_view interface);

// The release's rule for a pod of that many GPUs (0: a host, the default rule); null: it has none.
const InterfaceRule* interface_rule(const Release& release, int gpus);

}  // namespace ljtrain::image
