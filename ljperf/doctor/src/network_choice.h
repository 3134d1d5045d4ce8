// The interfaces that collectives take on this machine.
#pragma once

#include <vector>

#include "doctor/machine.h"

namespace ljtrain::ljperf {

struct InterfaceChoice {
  std::vector<Interface> all;
  std::vector<Interface> usable;  // up, with an address
  std::vector<Interface> chosen;  // empty: the user's pattern matches none
  bool by_user = false;           // NCCL_SOCKET_IFNAME is set
};
InterfaceChoice choose_interfaces(const Machine& machine);

}  // namespace ljtrain::ljperf
