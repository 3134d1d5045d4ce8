// The loops of this folder, compiled once per instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "accl/types.h"

namespace ljtrain::accl::reduction {

// A whole reduction, but for the fence after streaming.
struct OnePass {
  void* destination = nullptr;
  void* second_destination = nullptr;  // may be nullptr
  const void* const* sources = nullptr;
  std::size_t source_count = 0;
  const Scale* scales = nullptr;  // of kPremulSum
  std::size_t count = 0;          // elements
  int average_over = 1;           // of kAvg; 1 otherwise
  bool streaming = false;
};
using OnePassFunction = void (*)(const OnePass& pass);

// Too large a result of an 8-bit floating-point type: CUDA's conversion, and so NCCL, makes it the
// largest finite number
// (__NV_SATFINITE), infinity included. A maximum or minimum is one of the inputs and needs none of
// that.
enum class Overflow : unsigned char { kSaturate, kKeepInfinity };

using Widen = void (*)(void* accumulator, const void* source, std::size_t count);
using WidenScaled = void (*)(void* accumulator, const void* source, std::size_t count,
                             const Scale& scale);
// `out` may be equal to `a` or `b`.
using Combine = void (*)(void* out, const void* a, const void* b, std::size_t count);
using Narrow = void (*)(void* out, const void* accumulator, std::size_t count, int average_over,
                        Overflow overflow);

struct Kernels {
  const char* name = "";
  std::array<Widen, kDataTypes> widen{};
  std::array<WidenScaled, kDataTypes> widen_scaled{};
  std::array<std::array<Combine, kReduceOps>, kDataTypes> combine{};  // by accumulator type
  std::array<Narrow, kDataTypes> narrow{};
  // nullptr for pairs that are reduced in blocks with the functions above.
  std::array<std::array<OnePassFunction, kReduceOps>, kDataTypes> one_pass{};
  // Past the caches, and with ordinary stores to `cached` unless that is nullptr. Needs a fence
  // after it.
  void (*stream)(void* streamed, void* cached, const void* source, std::size_t bytes) = nullptr;
  void (*copy_to_two)(void* first, void* second, const void* source, std::size_t bytes) = nullptr;
  void (*fence)() = nullptr;
};

// Those this processor can run, the best first.
std::span<const Kernels* const> available_kernels();
// Those in use. set_kernels is for tests; nullptr: back to the best.
const Kernels& kernels();
void set_kernels(const Kernels* chosen);

}  // namespace ljtrain::accl::reduction
