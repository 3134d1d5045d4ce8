#include "communicator/allocation.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "accl/error.h"

namespace ljtrain::accl::allocation {
namespace {

constexpr std::size_t kPage = 4096;

struct Allocation {
  std::uint64_t id = 0;
  base::UniqueFd memory;
  std::size_t bytes = 0;  // of the mapping
};

// By address. Never destroyed: buffers may be freed by other static objects.
struct Registry {
  std::mutex mutex;
  std::map<const std::byte*, Allocation> allocations;
  std::uint64_t next_id = 1;
  std::atomic<std::size_t> live{0};  // spares the lock where nobody allocates
  std::atomic<std::uint64_t> deallocations{0};
};
Registry& registry() {
  static auto* const kept = new Registry;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kept;
}

}  // namespace

void* allocate(std::size_t bytes) {
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  base::UniqueFd memory(::memfd_create("accl-buffer", MFD_CLOEXEC));
  if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(size)) != 0) {
    throw error(ErrorCode::kSystem, "cannot allocate {} bytes of shared memory: {}", bytes,
                std::strerror(errno));
  }
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) {
    throw error(ErrorCode::kSystem, "cannot map {} bytes of shared memory: {}", bytes,
                std::strerror(errno));
  }
  ::madvise(base, size, MADV_HUGEPAGE);
  const std::scoped_lock lock(registry().mutex);
  registry().allocations.emplace(
      static_cast<const std::byte*>(base),
      Allocation{.id = registry().next_id++, .memory = std::move(memory), .bytes = size});
  ++registry().live;
  return base;
}

bool deallocate(void* memory) noexcept {
  std::size_t bytes = 0;
  {
    const std::scoped_lock lock(registry().mutex);
    const auto at = registry().allocations.find(static_cast<const std::byte*>(memory));
    if (at == registry().allocations.end()) {
      return false;
    }
    bytes = at->second.bytes;
    registry().allocations.erase(at);
    --registry().live;
    ++registry().deallocations;
  }
  ::munmap(memory, bytes);
  return true;
}

Place find(const void* memory, std::size_t bytes) {
  if (registry().live.load(std::memory_order_acquire) == 0) {
    return {};
  }
  const auto* address = static_cast<const std::byte*>(memory);
  const std::scoped_lock lock(registry().mutex);
  auto at = registry().allocations.upper_bound(address);
  if (at == registry().allocations.begin()) {
    return {};
  }
  --at;
  const auto offset = static_cast<std::size_t>(address - at->first);
  if (offset > at->second.bytes || bytes > at->second.bytes - offset) {
    return {};
  }
  return {.id = at->second.id,
          .offset = offset,
          .bytes = at->second.bytes,
          .descriptor = at->second.memory.get()};
}

std::uint64_t deallocations() { return registry().deallocations.load(std::memory_order_relaxed); }

Mapping::Mapping(const base::UniqueFd& memory, std::size_t bytes) : bytes_(bytes) {
  struct stat facts{};
  if (::fstat(memory.get(), &facts) != 0 || std::cmp_less(facts.st_size, bytes)) {
    throw error(ErrorCode::kInternal, "a peer's buffer is smaller than it said");
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) {
    throw error(ErrorCode::kSystem, "cannot map a peer's buffer of {} bytes: {}", bytes,
                std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(base);
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    ::munmap(data_, bytes_);
  }
}

}  // namespace ljtrain::accl::allocation
