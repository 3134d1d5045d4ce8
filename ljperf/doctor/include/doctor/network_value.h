// What NCCL_SOCKET_IFNAME should be on this machine, by a release's rule.
#pragma once

#include <optional>
#include <string>

#include "doctor/machine.h"
#include "image/release.h"

namespace ljtrain::ljperf {

struct NetworkValue {
  std::string value;  // empty: leave the variable unset, NCCL chooses
  std::string why;    // one sentence
};

// `gpus`: GPUs of the pod; nullopt: those whose device nodes are here. A value that the user has set
// is kept. An interface that is not here, is down or has no address is never named: a name fixed in
// an image breaks every other network.
NetworkValue network_value(const Machine& machine, const image::Release& release,
                           std::optional<int> gpus);

}  // namespace ljtrain::ljperf
