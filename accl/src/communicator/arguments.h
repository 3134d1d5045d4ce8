// Checking what a caller passed, before any peer hears of it.
#pragma once

#include "accl/types.h"
#include "transport/shared_memory/segment.h"

namespace ljtrain::accl {

// Throws kInvalidArgument.
void check_arguments(const Collective& collective, int rank, int ranks);

// What the peers are told. Parts of equal counts are announced like no parts.
shared_memory::Descriptor make_descriptor(const Collective& collective, std::uint64_t sequence);

// Where the buffers lie that peers may read or write.
shared_memory::BufferPlaces find_buffers(const Collective& collective, int rank, int ranks);

}  // namespace ljtrain::accl
