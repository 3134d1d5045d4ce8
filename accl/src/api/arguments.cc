#include "api/arguments.h"

#include <cstdint>

#include "accl/error.h"

namespace ljtrain::accl::api {

DataType require_type(ncclDataType_t type) {
  const auto value = static_cast<unsigned>(type);
  if (value >= ncclNumTypes) {
    throw error(ErrorCode::kInvalidArgument, "datatype {} is none of NCCL's {}",
                static_cast<int>(value), static_cast<int>(ncclNumTypes));
  }
  return static_cast<DataType>(value);
}

void require_rank(int rank, int size, const char* what) {
  if (rank < 0 || rank >= size) {
    throw error(ErrorCode::kInvalidArgument, "{} {} is none of the ranks 0 to {}", what, rank,
                size - 1);
  }
}

void require_count(std::size_t count, DataType type, int ranks) {
  const std::size_t most =
      static_cast<std::size_t>(PTRDIFF_MAX) / size_of(type) / static_cast<std::size_t>(ranks);
  if (count > most) {
    throw error(ErrorCode::kInvalidArgument, "count {} of {} is more than memory can hold", count,
                name_of(type));
  }
}

void require_buffer(const void* buffer, std::size_t count, const char* name) {
  if (buffer == nullptr && count > 0) {
    throw error(ErrorCode::kInvalidArgument, "{} is NULL and count is {}", name, count);
  }
}

void require_flags(unsigned flags, unsigned known, const char* name) {
  if ((flags & ~known) != 0) {
    throw error(ErrorCode::kInvalidArgument, "{} {:#x} has bits without a meaning", name, flags);
  }
}

}  // namespace ljtrain::accl::api
