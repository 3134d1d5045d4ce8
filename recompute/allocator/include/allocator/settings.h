// The settings of PyTorch's CUDA caching allocator, as PYTORCH_ALLOC_CONF (formerly
// PYTORCH_CUDA_ALLOC_CONF) spells them: "expandable_segments:True,max_split_size_mb:128".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ljtrain::recompute {

inline constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
inline constexpr std::int64_t kUnlimited = INT64_MAX;

// A petabyte: more than a process can hold, and small enough that sums of bytes fit 64 bits.
inline constexpr std::int64_t kLargestRequest = std::int64_t{1} << 50;

// Bytes, unless said otherwise. Defaults are PyTorch 2.13's.
struct AllocatorSettings {
  // Requests between 1 and 10 MiB are cut from segments of this size.
  std::int64_t large_segment = 20 * kMebibyte;
  // Blocks of this size and above are not split.
  std::int64_t max_split = kUnlimited;
  // How much larger than a request of max_split and above the block may be that serves it.
  std::int64_t max_non_split_rounding = 20 * kMebibyte;
  // Of the allowed memory; above it, cached segments that lie idle are given back. 0: never.
  double garbage_collection_threshold = 0;
  // Steps between powers of two that a request is rounded up to, by the power of two at or below
  // it: 1 MiB and less, 2 MiB, 4 MiB, ... 32 GiB and more. 0 and 1: multiples of 512 bytes.
  std::array<std::int64_t, 16> roundup_power2_divisions{};
  bool expandable_segments = false;
  // Share of the device's memory that the process may reserve.
  double per_process_memory_fraction = 1.0;
  // An allocation that the device cannot serve fails before cached memory is given back for it.
  bool throw_on_cudamalloc_oom = false;

  // Keys that PyTorch takes and that do not change what is allocated on the device.
  std::vector<std::string> without_effect;
  // As the user wrote it.
  std::string text;

  // PyTorch collects garbage only where the process's share of the device was limited.
  bool collects_garbage() const {
    return garbage_collection_threshold > 0 && per_process_memory_fraction < 1;
  }
  // Divisions for a request of `bytes` > 0.
  std::int64_t divisions_for(std::int64_t bytes) const;
  // What a request of `bytes` > 0 becomes: at least 512 bytes. bytes <= kLargestRequest.
  std::int64_t rounded(std::int64_t bytes) const;
};

// Throws UserError for what PyTorch 2.13 refuses, for an unknown key (with the nearest), and for
// backend:cudaMallocAsync, which is the driver's allocator and not this one. `where` stands for
// the place of the text in messages.
AllocatorSettings parse_allocator_settings(std::string_view text,
                                           std::string_view where = "allocator settings");

}  // namespace ljtrain::recompute
