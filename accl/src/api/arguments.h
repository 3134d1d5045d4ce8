// Checks of what callers hand in. All throw kInvalidArgument with a sentence that names the
// argument and its value.
#pragma once

#include <cstddef>

#include "accl/nccl.h"
#include "accl/types.h"

namespace ljtrain::accl::api {

DataType require_type(ncclDataType_t type);
// `what`: "root", "peer".
void require_rank(int rank, int size, const char* what);
// count elements of `type` in `ranks` shares; the size in bytes must fit in a signed number.
void require_count(std::size_t count, DataType type, int ranks);
// May be NULL when there is nothing in it.
void require_buffer(const void* buffer, std::size_t count, const char* name);
// Flags, of which only `known` bits have a meaning.
void require_flags(unsigned flags, unsigned known, const char* name);

}  // namespace ljtrain::accl::api
