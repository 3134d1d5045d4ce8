// Copying. Included once per instruction set by kernels.cc.
#if defined(ACCL_REDUCTION_COPY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCL_REDUCTION_COPY_INL_H_
#undef ACCL_REDUCTION_COPY_INL_H_
#else
#define ACCL_REDUCTION_COPY_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "reduction/kernels.h"

HWY_BEFORE_NAMESPACE();
// NOLINTNEXTLINE(modernize-concat-nested-namespaces): the form that Highway asks for
namespace ljtrain::accl::reduction {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::ScalableTag<std::uint8_t>;
inline constexpr std::size_t kCopyVectors = 4;

inline void copy_ends(std::uint8_t* first, std::uint8_t* second, const std::uint8_t* source,
                      std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  std::memcpy(first, source, bytes);
  if (second != nullptr) {
    std::memcpy(second, source, bytes);
  }
}

// Whole blocks of kCopyVectors vectors; returns the bytes done. kStream: `first` is aligned.
template <bool kStream, bool kTwo>
std::size_t copy_blocks(std::uint8_t* first, std::uint8_t* second, const std::uint8_t* source,
                        std::size_t bytes) {
  const Bytes d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t at = 0;
  for (; at + kCopyVectors * lanes <= bytes; at += kCopyVectors * lanes) {
    hn::Vec<Bytes> block[kCopyVectors];
    for (std::size_t v = 0; v < kCopyVectors; ++v) {
      block[v] = hn::LoadU(d, source + at + v * lanes);
    }
    for (std::size_t v = 0; v < kCopyVectors; ++v) {
      if constexpr (kStream) {
        hn::Stream(block[v], d, first + at + v * lanes);
      } else {
        hn::StoreU(block[v], d, first + at + v * lanes);
      }
      if constexpr (kTwo) {
        hn::StoreU(block[v], d, second + at + v * lanes);
      }
    }
  }
  return at;
}

inline void stream(void* streamed, void* cached, const void* source, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  auto* first = static_cast<std::uint8_t*>(streamed);
  auto* second = static_cast<std::uint8_t*>(cached);
  const auto* from = static_cast<const std::uint8_t*>(source);
  const std::size_t to_line = (kLine - reinterpret_cast<std::uintptr_t>(first) % kLine) % kLine;
  const std::size_t head = std::min(bytes, to_line);
  copy_ends(first, second, from, head);
  const auto blocks = second == nullptr ? copy_blocks<true, false> : copy_blocks<true, true>;
  std::uint8_t* const second_body = second == nullptr ? nullptr : second + head;
  const std::size_t done = head + blocks(first + head, second_body, from + head, bytes - head);
  copy_ends(first + done, second == nullptr ? nullptr : second + done, from + done, bytes - done);
}

inline void copy_to_two(void* first, void* second, const void* source, std::size_t bytes) {
  auto* const a = static_cast<std::uint8_t*>(first);
  auto* const b = static_cast<std::uint8_t*>(second);
  const auto* const from = static_cast<const std::uint8_t*>(source);
  const std::size_t done = copy_blocks<false, true>(a, b, from, bytes);
  copy_ends(a + done, b + done, from + done, bytes - done);
}

inline void fence() { hwy::FlushStream(); }

constexpr void add_copies(Kernels& table) {
  table.stream = stream;
  table.copy_to_two = copy_to_two;
  table.fence = fence;
}

}  // namespace HWY_NAMESPACE
}  // namespace ljtrain::accl::reduction
HWY_AFTER_NAMESPACE();

#endif
