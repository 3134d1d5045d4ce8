// Sums and averages of floating-point types in one pass over all sources, with Highway. Included
// once per instruction set by kernels.cc.
//
// A format says how a vector in memory becomes `kParts` vectors of the accumulator's type and back.
// Elements before the first and after the last whole vector go through the same code by way of
// padded buffers, so every element is computed alike.
#if defined(ACCL_REDUCTION_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCL_REDUCTION_SUM_INL_H_
#undef ACCL_REDUCTION_SUM_INL_H_
#else
#define ACCL_REDUCTION_SUM_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "reduction/encodings.h"
#include "reduction/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace ljtrain::accl::reduction {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V>
HWY_INLINE V canonical_vector(D d, V v) {
  const hn::RebindToUnsigned<D> bits;
  using Bits = hn::TFromD<decltype(bits)>;
  constexpr Bits kNan = sizeof(Bits) == 8 ? static_cast<Bits>(kDoubleNan) : Bits{kFloatNan};
  return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::Set(bits, kNan)), v);
}

template <class T>
struct NativeFormat {
  using Element = T;
  using Accumulator = hn::ScalableTag<T>;
  using Memory = hn::ScalableTag<T>;
  static constexpr std::size_t kParts = 1;
  static HWY_INLINE void load(const std::uint8_t* from, hn::Vec<Accumulator>* parts) {
    parts[0] = hn::LoadU(Memory(), reinterpret_cast<const T*>(from));
  }
  static HWY_INLINE hn::Vec<Memory> encode(const hn::Vec<Accumulator>* parts) {
    return canonical_vector(Accumulator(), parts[0]);
  }
};

// Elements of even and odd index are the halves of 32-bit lanes: no lane moves.
struct Bfloat16Format {
  using Element = std::uint16_t;
  using Accumulator = hn::ScalableTag<float>;
  using Memory = hn::ScalableTag<std::uint32_t>;
  static constexpr std::size_t kParts = 2;
  static HWY_INLINE void load(const std::uint8_t* from, hn::Vec<Accumulator>* parts) {
    const auto both = hn::LoadU(Memory(), reinterpret_cast<const std::uint32_t*>(from));
    parts[0] = hn::BitCast(Accumulator(), hn::ShiftLeft<16>(both));
    parts[1] = hn::BitCast(Accumulator(), hn::And(both, hn::Set(Memory(), 0xffff0000U)));
  }
  // Not VCVTNEPS2BF16, which takes denormals for zero.
  static HWY_INLINE hn::Vec<Memory> encode(const hn::Vec<Accumulator>* parts) {
    const auto odd = hn::And(rounded(parts[1]), hn::Set(Memory(), 0xffff0000U));
    return hn::Or(hn::ShiftRight<16>(rounded(parts[0])), odd);
  }
  static HWY_INLINE hn::Vec<Memory> rounded(hn::Vec<Accumulator> value) {
    const auto bits = hn::BitCast(Memory(), canonical_vector(Accumulator(), value));
    const auto last = hn::And(hn::ShiftRight<16>(bits), hn::Set(Memory(), 1));
    return hn::Add(hn::Add(bits, hn::Set(Memory(), 0x7fff)), last);
  }
};

#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SCALAR
// Without instructions for it: what encodings.h does, on vectors.
struct Float16Format {
  using Element = std::uint16_t;
  using Accumulator = hn::ScalableTag<float>;
  using Memory = hn::ScalableTag<std::uint32_t>;
  using Signed = hn::ScalableTag<std::int32_t>;
  static constexpr std::size_t kParts = 2;
  static HWY_INLINE hn::Vec<Signed> set(std::uint32_t value) {
    return hn::Set(Signed(), static_cast<std::int32_t>(value));
  }
  static HWY_INLINE void load(const std::uint8_t* from, hn::Vec<Accumulator>* parts) {
    const auto both = hn::LoadU(Memory(), reinterpret_cast<const std::uint32_t*>(from));
    parts[0] = decode(hn::BitCast(Signed(), hn::And(both, hn::Set(Memory(), 0xffffU))));
    parts[1] = decode(hn::BitCast(Signed(), hn::ShiftRight<16>(both)));
  }
  static HWY_INLINE hn::Vec<Accumulator> decode(hn::Vec<Signed> half) {
    const Accumulator floats;
    const auto sign = hn::ShiftLeft<16>(hn::And(half, set(Float16::kSign)));
    const auto magnitude = hn::And(half, set(Float16::kSign - 1));
    const auto shifted = hn::ShiftLeft<Float16::kShift>(magnitude);
    const auto smallest = set(Float16::kRebias + (1U << 23));
    const auto denormal = hn::BitCast(
        Signed(),
        hn::Sub(hn::BitCast(floats, hn::Add(shifted, smallest)), hn::BitCast(floats, smallest)));
    const auto special =
        hn::IfThenElse(hn::Eq(magnitude, set(Float16::kInfinity)), set(0x7f800000), set(kFloatNan));
    auto result = hn::Add(shifted, set(Float16::kRebias));
    result = hn::IfThenElse(hn::Lt(magnitude, set(1U << 10)), denormal, result);
    result = hn::IfThenElse(hn::Lt(magnitude, set(Float16::kInfinity)), result, special);
    return hn::BitCast(floats, hn::Or(result, sign));
  }
  static HWY_INLINE hn::Vec<Memory> encode(const hn::Vec<Accumulator>* parts) {
    const auto even = hn::BitCast(Memory(), encode_lanes(parts[0]));
    const auto odd = hn::BitCast(Memory(), encode_lanes(parts[1]));
    return hn::Or(even, hn::ShiftLeft<16>(odd));
  }
  static HWY_INLINE hn::Vec<Signed> encode_lanes(hn::Vec<Accumulator> value) {
    const Accumulator floats;
    const auto bits = hn::BitCast(Signed(), value);
    const auto magnitude = hn::And(bits, set(0x7fffffff));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), set(Float16::kSign));
    const auto rebased = hn::Sub(magnitude, set(Float16::kRebias));
    const auto last = hn::And(hn::ShiftRight<Float16::kShift>(rebased), set(1));
    const auto normal = hn::ShiftRight<Float16::kShift>(
        hn::Add(hn::Add(rebased, set((1U << (Float16::kShift - 1)) - 1)), last));
    const auto magic = set(Float16::kRebias + (14U << 23));
    const auto denormal = hn::Sub(
        hn::BitCast(Signed(), hn::Add(hn::BitCast(floats, magnitude), hn::BitCast(floats, magic))),
        magic);
    auto result =
        hn::IfThenElse(hn::Lt(magnitude, set(Float16::kRebias + (1U << 23))), denormal, normal);
    result = hn::Or(hn::Min(result, set(Float16::kInfinity)), sign);
    return hn::IfThenElse(hn::Gt(magnitude, set(0x7f800000)), set(Float16::kNan), result);
  }
};
#else
struct Float16Format {
  using Element = std::uint16_t;
  using Accumulator = hn::ScalableTag<float>;
  using Memory = hn::ScalableTag<std::uint16_t>;
  using Half = hn::Rebind<hwy::float16_t, Accumulator>;
  using HalfBits = hn::Rebind<std::uint16_t, Accumulator>;
  static constexpr std::size_t kParts = 2;
  static HWY_INLINE void load(const std::uint8_t* from, hn::Vec<Accumulator>* parts) {
    const auto* const halves = reinterpret_cast<const hwy::float16_t*>(from);
    parts[0] = hn::PromoteTo(Accumulator(), hn::LoadU(Half(), halves));
    parts[1] = hn::PromoteTo(Accumulator(), hn::LoadU(Half(), halves + hn::Lanes(Half())));
  }
  static HWY_INLINE hn::Vec<Memory> encode(const hn::Vec<Accumulator>* parts) {
    return hn::Combine(Memory(), hn::BitCast(HalfBits(), half(parts[1])),
                       hn::BitCast(HalfBits(), half(parts[0])));
  }
  static HWY_INLINE hn::Vec<Half> half(hn::Vec<Accumulator> value) {
    return hn::DemoteTo(Half(), canonical_vector(Accumulator(), value));
  }
};
#endif

// Division by a power of two is multiplication with its inverse, to the last bit.
template <class T>
struct Divisor {
  explicit Divisor(int over)
      : multiplies(std::has_single_bit(static_cast<unsigned>(over))),
        divides(!multiplies),
        value(multiplies ? T{1} / static_cast<T>(over) : static_cast<T>(over)) {
    multiplies = multiplies && over != 1;
  }
  bool multiplies;
  bool divides;
  T value;
};
template <class Format>
using DivisorOf = Divisor<hn::TFromD<typename Format::Accumulator>>;

template <class Format>
HWY_INLINE void divide_vectors(hn::Vec<typename Format::Accumulator>* sums, std::size_t count,
                               const DivisorOf<Format>& divisor) {
  const auto by = hn::Set(typename Format::Accumulator(), divisor.value);
  if (divisor.multiplies) {
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] = hn::Mul(sums[i], by);
    }
  } else if (divisor.divides) {
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] = hn::Div(sums[i], by);
    }
  }
}

template <class Format>
constexpr std::size_t vector_bytes() {
  return hn::MaxLanes(typename Format::Memory()) * sizeof(hn::TFromD<typename Format::Memory>);
}

// The sum of all sources in `kVectors` vectors, `offset` bytes from the beginning. kSources 0: any
// number.
template <class Format, std::size_t kSources, std::size_t kVectors>
HWY_INLINE void sum_vectors(const Sum& sum, const std::uint8_t* const* sources, std::size_t offset,
                            const DivisorOf<Format>& divisor, bool streaming) {
  using Memory = typename Format::Memory;
  using Vector = hn::Vec<typename Format::Accumulator>;
  constexpr std::size_t kAll = kVectors * Format::kParts;
  const std::size_t source_count = kSources == 0 ? sum.source_count : kSources;
  Vector sums[kAll];
  for (std::size_t v = 0; v < kVectors; ++v) {
    Format::load(sources[0] + offset + v * vector_bytes<Format>(), sums + v * Format::kParts);
  }
  for (std::size_t s = 1; s < source_count; ++s) {
    Vector next[kAll];
    for (std::size_t v = 0; v < kVectors; ++v) {
      Format::load(sources[s] + offset + v * vector_bytes<Format>(), next + v * Format::kParts);
    }
    for (std::size_t i = 0; i < kAll; ++i) {
      sums[i] = hn::Add(sums[i], next[i]);
    }
  }
  divide_vectors<Format>(sums, kAll, divisor);
  hn::Vec<Memory> results[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    results[v] = Format::encode(sums + v * Format::kParts);
  }
  using Lane = hn::TFromD<Memory>;
  auto* const out = reinterpret_cast<Lane*>(static_cast<std::uint8_t*>(sum.destination) + offset);
  const std::size_t lanes = hn::Lanes(Memory());
  for (std::size_t v = 0; v < kVectors; ++v) {
    if (streaming) {
      hn::Stream(results[v], Memory(), out + v * lanes);
    } else {
      hn::StoreU(results[v], Memory(), out + v * lanes);
    }
  }
  if (sum.second_destination != nullptr) {
    auto* const second =
        reinterpret_cast<Lane*>(static_cast<std::uint8_t*>(sum.second_destination) + offset);
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(results[v], Memory(), second + v * lanes);
    }
  }
}

// Less than a vector.
template <class Format>
HWY_NOINLINE void sum_partial(const Sum& sum, const std::uint8_t* const* sources,
                              std::size_t offset, std::size_t bytes,
                              const DivisorOf<Format>& divisor) {
  using Memory = typename Format::Memory;
  using Vector = hn::Vec<typename Format::Accumulator>;
  constexpr std::size_t kParts = Format::kParts;
  alignas(64) std::uint8_t buffer[vector_bytes<Format>()] = {};
  std::memcpy(buffer, sources[0] + offset, bytes);
  Vector sums[kParts];
  Format::load(buffer, sums);
  for (std::size_t s = 1; s < sum.source_count; ++s) {
    std::memcpy(buffer, sources[s] + offset, bytes);
    Vector next[kParts];
    Format::load(buffer, next);
    for (std::size_t i = 0; i < kParts; ++i) {
      sums[i] = hn::Add(sums[i], next[i]);
    }
  }
  divide_vectors<Format>(sums, kParts, divisor);
  hn::StoreU(Format::encode(sums), Memory(), reinterpret_cast<hn::TFromD<Memory>*>(buffer));
  std::memcpy(static_cast<std::uint8_t*>(sum.destination) + offset, buffer, bytes);
  if (sum.second_destination != nullptr) {
    std::memcpy(static_cast<std::uint8_t*>(sum.second_destination) + offset, buffer, bytes);
  }
}

template <class Format, std::size_t kSources>
void sum_range(const Sum& sum, std::size_t begin, std::size_t end, const DivisorOf<Format>& divisor,
               bool streaming) {
  constexpr std::size_t kVectors = 4 / Format::kParts;
  constexpr std::size_t kBytes = vector_bytes<Format>();
  // Of a fixed number of sources the pointers stay in registers.
  const std::uint8_t* fixed[kSources == 0 ? 1 : kSources];
  const auto* sources = reinterpret_cast<const std::uint8_t* const*>(sum.sources);
  if constexpr (kSources != 0) {
    for (std::size_t s = 0; s < kSources; ++s) {
      fixed[s] = sources[s];
    }
    sources = fixed;
  }
  std::size_t at = begin;
  for (; at + kVectors * kBytes <= end; at += kVectors * kBytes) {
    sum_vectors<Format, kSources, kVectors>(sum, sources, at, divisor, streaming);
  }
  for (; at + kBytes <= end; at += kBytes) {
    sum_vectors<Format, kSources, 1>(sum, sources, at, divisor, streaming);
  }
  if (at < end) {
    sum_partial<Format>(sum, sources, at, end - at, divisor);
  }
}

template <class Format, std::size_t kSources>
void sum_sources(const Sum& sum) {
  constexpr std::size_t kLine = 64;
  const DivisorOf<Format> divisor(sum.average_over);
  const std::size_t bytes = sum.count * sizeof(typename Format::Element);
  std::size_t head = 0;
  bool streaming = sum.streaming;
  if (streaming) {
    head = (kLine - reinterpret_cast<std::uintptr_t>(sum.destination) % kLine) % kLine;
    streaming = head % sizeof(typename Format::Element) == 0 && head + kLine <= bytes;
  }
  if (!streaming) {
    sum_range<Format, kSources>(sum, 0, bytes, divisor, false);
    return;
  }
  if (head > 0) {
    sum_range<Format, kSources>(sum, 0, head, divisor, false);
  }
  sum_range<Format, kSources>(sum, head, bytes, divisor, true);
}

template <class Format>
void sum_any(const Sum& sum) {
  switch (sum.source_count) {
    case 2:
      return sum_sources<Format, 2>(sum);
    case 3:
      return sum_sources<Format, 3>(sum);
    case 4:
      return sum_sources<Format, 4>(sum);
    default:
      return sum_sources<Format, 0>(sum);
  }
}
template <class Format>
void sum_complex(const Sum& sum) {
  Sum parts = sum;
  parts.count *= 2;
  sum_any<Format>(parts);
}

constexpr void add_sums(Kernels& table) {
  table.sum[static_cast<std::size_t>(DataType::kFloat32)] = sum_any<NativeFormat<float>>;
  table.sum[static_cast<std::size_t>(DataType::kComplex64)] = sum_complex<NativeFormat<float>>;
#if HWY_HAVE_FLOAT64
  table.sum[static_cast<std::size_t>(DataType::kFloat64)] = sum_any<NativeFormat<double>>;
  table.sum[static_cast<std::size_t>(DataType::kComplex128)] = sum_complex<NativeFormat<double>>;
#endif
  table.sum[static_cast<std::size_t>(DataType::kFloat16)] = sum_any<Float16Format>;
  table.sum[static_cast<std::size_t>(DataType::kBfloat16)] = sum_any<Bfloat16Format>;
}

}  // namespace HWY_NAMESPACE
}  // namespace ljtrain::accl::reduction
HWY_AFTER_NAMESPACE();

#endif
