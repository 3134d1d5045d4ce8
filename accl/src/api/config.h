// ncclConfig_t as ACCL understands it.
#pragma once

#include <string>

#include "accl/nccl.h"

namespace ljtrain::accl::api {

struct CommSettings {
  bool is_blocking = true;
  std::string name;  // empty: none given
};

// Checks `config` as NCCL does and reads what counts on hosts over `defaults`. nullptr: the
// defaults. Configurations of older versions are shorter; the fields that they lack are unset.
// Throws kInvalidArgument.
CommSettings read_config(const ncclConfig_t* config, const CommSettings& defaults);

}  // namespace ljtrain::accl::api
