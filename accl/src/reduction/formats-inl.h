// How a vector in memory becomes `kParts` vectors of the accumulator's type and back, with Highway.
// Included once per instruction set by kernels.cc.
#if defined(ACCL_REDUCTION_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCL_REDUCTION_FORMATS_INL_H_
#undef ACCL_REDUCTION_FORMATS_INL_H_
#else
#define ACCL_REDUCTION_FORMATS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "reduction/encodings.h"

HWY_BEFORE_NAMESPACE();
// NOLINTNEXTLINE(modernize-concat-nested-namespaces): the form that Highway asks for
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

// What encodings.h does, on vectors: for types without conversion instructions. The elements of a
// 32-bit lane are its parts.
template <class Encoding, bool kSaturate>
struct EmulatedFormat {
  using Element = Encoding::Bits;
  using Accumulator = hn::ScalableTag<float>;
  using Memory = hn::ScalableTag<std::uint32_t>;
  using Signed = hn::ScalableTag<std::int32_t>;
  static constexpr std::size_t kParts = 4 / sizeof(Element);
  static constexpr int kBits = 8 * sizeof(Element);
  static constexpr std::uint32_t kSmallestNormal = Encoding::kRebias + (1U << 23);

  static HWY_INLINE hn::Vec<Signed> set(std::uint32_t value) {
    return hn::Set(Signed(), static_cast<std::int32_t>(value));
  }
  static HWY_INLINE void load(const std::uint8_t* from, hn::Vec<Accumulator>* parts) {
    const auto all = hn::LoadU(Memory(), reinterpret_cast<const std::uint32_t*>(from));
    const auto mask = hn::Set(Memory(), (1U << kBits) - 1);
    parts[0] = decode(hn::And(all, mask));
    parts[1] = decode(hn::And(hn::ShiftRight<kBits>(all), mask));
    if constexpr (kParts == 4) {
      parts[2] = decode(hn::And(hn::ShiftRight<2 * kBits>(all), mask));
      parts[3] = decode(hn::ShiftRight<3 * kBits>(all));
    }
  }
  static HWY_INLINE hn::Vec<Accumulator> decode(hn::Vec<Memory> code) {
    const Accumulator floats;
    const auto bits = hn::BitCast(Signed(), code);
    const auto sign = hn::ShiftLeft<32 - kBits>(hn::And(bits, set(Encoding::kSign)));
    const auto magnitude = hn::And(bits, set(Encoding::kSign - 1));
    const auto shifted = hn::ShiftLeft<Encoding::kShift>(magnitude);
    const auto smallest = set(kSmallestNormal);
    const auto denormal = hn::BitCast(
        Signed(),
        hn::Sub(hn::BitCast(floats, hn::Add(shifted, smallest)), hn::BitCast(floats, smallest)));
    auto special = set(kFloatNan);
    if constexpr (Encoding::kHasInfinity) {
      special =
          hn::IfThenElse(hn::Eq(magnitude, set(Encoding::kInfinity)), set(0x7f800000), special);
    }
    auto result = hn::Add(shifted, set(Encoding::kRebias));
    result =
        hn::IfThenElse(hn::Lt(magnitude, set(1U << Encoding::kMantissaBits)), denormal, result);
    result = hn::IfThenElse(hn::Lt(magnitude, set(Encoding::kInfinity)), result, special);
    return hn::BitCast(floats, hn::Or(result, sign));
  }
  static HWY_INLINE hn::Vec<Memory> encode(const hn::Vec<Accumulator>* parts) {
    auto all = hn::Or(encode_part(parts[0]), hn::ShiftLeft<kBits>(encode_part(parts[1])));
    if constexpr (kParts == 4) {
      all = hn::Or(all, hn::Or(hn::ShiftLeft<2 * kBits>(encode_part(parts[2])),
                               hn::ShiftLeft<3 * kBits>(encode_part(parts[3]))));
    }
    return all;
  }
  static HWY_INLINE hn::Vec<Memory> encode_part(hn::Vec<Accumulator> value) {
    const Accumulator floats;
    const auto bits = hn::BitCast(Signed(), value);
    const auto magnitude = hn::And(bits, set(0x7fffffff));
    const auto sign = hn::And(hn::ShiftRight<32 - kBits>(bits), set(Encoding::kSign));
    const auto rebased = hn::Sub(magnitude, set(Encoding::kRebias));
    const auto last = hn::And(hn::ShiftRight<Encoding::kShift>(rebased), set(1));
    const auto below_half = set((1U << (Encoding::kShift - 1)) - 1);
    const auto normal =
        hn::ShiftRight<Encoding::kShift>(hn::Add(hn::Add(rebased, below_half), last));
    const auto magic = set(Encoding::kMagic);
    const auto rounded = hn::Add(hn::BitCast(floats, magnitude), hn::BitCast(floats, magic));
    const auto denormal = hn::Sub(hn::BitCast(Signed(), rounded), magic);
    auto result = hn::IfThenElse(hn::Lt(magnitude, set(kSmallestNormal)), denormal, normal);
    const auto largest = set(kSaturate ? Encoding::kInfinity - 1 : Encoding::kInfinity);
    result = hn::Or(hn::Min(result, largest), sign);
    result = hn::IfThenElse(hn::Gt(magnitude, set(0x7f800000)), set(Encoding::kNan), result);
    return hn::BitCast(Memory(), result);
  }
};

#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SCALAR
using Float16Format = EmulatedFormat<Float16, false>;
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

}  // namespace HWY_NAMESPACE
}  // namespace ljtrain::accl::reduction
HWY_AFTER_NAMESPACE();

#endif
