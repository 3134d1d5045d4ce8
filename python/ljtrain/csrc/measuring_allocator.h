// An allocator for CPU tensors that counts what is alive, exactly and on all threads.
//
// PyTorch has peak statistics for CUDA but none for CPU: the resident size of a process mixes
// tensors with code, Python and what malloc keeps. This allocator takes the place of PyTorch's by
// c10::SetCPUAllocator, hands every request to the same c10::alloc_cpu and keeps a table of sizes
// beside it. Nothing is stored in or before a block, so alignment and the size malloc sees are
// those of stock PyTorch, and a pointer from before it was installed can be freed by it.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace ljtrain {

// Sizes are the bytes asked for, not what malloc rounds them to. Peak is the highest value that
// `current_bytes` took since the last reset.
struct AllocatorStatistics {
  std::int64_t current_bytes = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t allocations = 0;  // since it was installed
  std::int64_t refused = 0;      // allocations that would have passed the limit
};

class MeasuringAllocator final : public c10::Allocator {
 public:
  // Returns `bytes` of memory aligned to 64 bytes; null for 0. Throws c10::Error when there is
  // none, c10::OutOfMemoryError (torch.OutOfMemoryError in Python) when the limit forbids it.
  c10::DataPtr allocate(std::size_t bytes) override;
  // Frees what this allocator or PyTorch's own gave out.
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, std::size_t count) const override;

  AllocatorStatistics statistics() const;
  // Lets the peak start again from what is alive now.
  void reset_peak();
  // While disabled, new blocks are not counted (nor when they are freed); blocks counted before
  // still are.
  void set_enabled(bool enabled);
  // The most bytes that may be alive from now on, kNoLimit for no limit. What is alive already
  // stays, even above it; then everything but empty tensors is refused until enough was freed.
  // While disabled, nothing is refused.
  void set_limit(std::int64_t bytes);
  std::int64_t limit() const;

  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  // The one instance. It is never destroyed: tensors may outlive main().
  static MeasuringAllocator& instance();
  // Makes it the allocator of CPU tensors from now on, for good; safe to call twice. Call it before
  // other threads allocate tensors: c10 does not guard the exchange.
  static void install();
};

}  // namespace ljtrain
