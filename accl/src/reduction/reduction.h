// Arithmetic and copying of collectives, vectorised; the instruction set is chosen at run time.
//
// Floating-point types of 16 and 8 bits are widened to float32, combined there, and rounded once
// (to nearest even) when the result is stored. Sources are combined in the order given, left to
// right, whatever the instruction set: the same input gives the same bits on every machine.
// (premul_sum: each source is multiplied by its scale in the accumulator's type before it is added,
// product and sum rounded one after the other, never fused.)
#pragma once

#include <cstddef>
#include <span>

#include "accl/types.h"

namespace ljtrain::accl::reduction {

struct Request {
  void* destination = nullptr;
  // Optional second copy of the result (nullptr: none). Written with ordinary stores.
  void* second_destination = nullptr;
  // One pointer per rank, in rank order. `destination` may be equal to one of them, but not overlap
  // otherwise.
  std::span<const void* const> sources;
  // Of kPremulSum only: one per source.
  // NOLINTNEXTLINE(readability-redundant-member-init): g++ warns of Requests made without it
  std::span<const Scale> scales = {};
  std::size_t count = 0;  // elements
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int average_over = 1;  // kAvg: the divisor
  bool streaming =
      false;  // write `destination` past the caches (it is large and not read again soon)
};
// destination[i] = op over sources[*][i]. Any alignment. Precondition: is_supported(type, op).
void reduce(const Request& request);

// For algorithms that pass partial results on (ring, trees). The accumulator holds elements of
// accumulator_type(): float32 for the 8- and 16-bit floating-point types, the type itself
// otherwise.
DataType accumulator_type(DataType type);
// accumulator[i] = source[i] (times scale, for kPremulSum)
void widen(void* accumulator, const void* source, std::size_t count, DataType type, ReduceOp op,
           const Scale& scale);
// accumulator[i] = accumulator[i] op other[i], both of accumulator_type(type). kAvg and kPremulSum
// add.
// Gives the same bits when the two are exchanged: recursive doubling relies on it.
void combine(void* accumulator, const void* other, std::size_t count, DataType type, ReduceOp op);
// destination[i] = round(accumulator[i]) (divided by average_over, for kAvg). In place is allowed
// where the types are equal.
void narrow(void* destination, const void* accumulator, std::size_t count, DataType type,
            ReduceOp op, int average_over);

// memcpy; `streaming` writes past the caches.
void copy(void* destination, const void* source, std::size_t bytes, bool streaming);
// Reads once, writes twice: `streamed` past the caches when `streaming`, `cached` with ordinary
// stores.
void copy_to_two(void* streamed, void* cached, const void* source, std::size_t bytes,
                 bool streaming);

// The instruction set in use: "AVX-512", "AVX2", "SSE4", "NEON", ... and with AVX512_BF16 when
// used.
const char* instruction_set();

}  // namespace ljtrain::accl::reduction
