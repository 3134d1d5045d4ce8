// Unique ids that ranks agree on without talking: from what all of them know.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "accl/communicator.h"

namespace ljtrain::accl::api {

// The same bytes wherever parent, purpose and numbers are the same; others, with all likelihood,
// where they are not.
UniqueId derive_id(const UniqueId& parent, std::string_view purpose,
                   std::span<const std::uint64_t> numbers);

// The first eight bytes as NCCL prints ids: "0x1234...".
std::uint64_t hash_of(const UniqueId& id);

}  // namespace ljtrain::accl::api
