// Memory that peers can map: one memfd for each allocation. The owner hands a descriptor to a peer that is with it in a
// collective over that allocation for the first time; the peer keeps the mapping until the owner frees it or leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/unique_fd.h"

namespace ljtrain::accl::allocation {

void* allocate(std::size_t bytes);
bool deallocate(void* memory) noexcept;

struct Place {
  std::uint64_t id = 0;  // never reused in this process; 0: not in any allocation
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // of the whole allocation
};
// Where [memory, memory + bytes) lies.
Place find(const void* memory, std::size_t bytes);

// A duplicate of the allocation's descriptor; none when it was freed meanwhile.
std::optional<base::UniqueFd> descriptor(std::uint64_t id);

// A peer's allocation, mapped into this process.
class Mapping {
 public:
  // Throws kSystem.
  Mapping(base::UniqueFd memory, std::size_t bytes);
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
