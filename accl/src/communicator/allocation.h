// Memory that peers can map: one memfd for each allocation. A peer that is with the owner in a
// collective over it opens it by /proc/PID/fd, and keeps the mapping until the owner has freed some
// allocation or the communicator ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/unique_fd.h"

namespace ljtrain::accl::allocation {

void* allocate(std::size_t bytes);
bool deallocate(void* memory) noexcept;

struct Place {
  std::uint64_t id = 0;  // never reused in this process; 0: not in any allocation
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // of the whole allocation
  int descriptor = -1;      // the owner's; valid as long as the allocation is
};
// Where [memory, memory + bytes) lies.
Place find(const void* memory, std::size_t bytes);

// How many allocations this process has freed so far.
std::uint64_t deallocations();

// A peer's allocation, mapped into this process.
class Mapping {
 public:
  // Throws kSystem.
  Mapping(const base::UniqueFd& memory, std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ljtrain::accl::allocation
