// The 8- and 16-bit floating-point types: to float32 (exact) and from float32 (to nearest even,
// once). Only integer operations and additions of normal numbers, without branches, so that
// compilers vectorise loops over them.
//
// A result that is no number is always the type's positive quiet NaN, since the bits of a NaN that
// an operation makes differ between processors.
#pragma once

#include <bit>
#include <cstdint>

namespace ljtrain::accl::reduction {

inline constexpr std::uint32_t kFloatNan = 0x7fc00000;
inline constexpr std::uint64_t kDoubleNan = 0x7ff8000000000000;

[[gnu::always_inline]] inline float canonical(float value) {
  return value != value ? std::bit_cast<float>(kFloatNan) : value;
}
[[gnu::always_inline]] inline double canonical(double value) {
  return value != value ? std::bit_cast<double>(kDoubleNan) : value;
}

// A floating-point type of 1 sign bit, kExponent and kMantissa bits, with denormals. `kInfinity`:
// the code after the largest finite number, or, in the type that has no infinity, its NaN. Larger
// codes are NaNs.
template <class BitsType, int kExponent, int kMantissa, std::uint32_t kInfinityCode,
          std::uint32_t kNanCode>
struct SmallFloat {
  using Bits = BitsType;
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr std::uint32_t kBias = (1U << (kExponent - 1)) - 1;
  static constexpr std::uint32_t kSign = 1U << (kExponent + kMantissa);
  static constexpr std::uint32_t kInfinity = kInfinityCode;
  static constexpr std::uint32_t kNan = kNanCode;
  static constexpr bool kHasInfinity = kInfinityCode + 1 <= kNanCode;
  // What to add to the exponent field of a float32, in place.
  static constexpr std::uint32_t kRebias = (127 - kBias) << 23;
  // A float32 whose last bit weighs as much as the smallest denormal: adding it rounds denormals.
  static constexpr std::uint32_t kMagic = kRebias + (static_cast<std::uint32_t>(kShift + 1) << 23);

  [[gnu::always_inline]] static float decode(Bits bits) {
    const std::uint32_t magnitude = bits & (kSign - 1);
    const std::uint32_t sign = (bits & kSign) << (31 - kExponent - kMantissa);
    const std::uint32_t shifted = magnitude << kShift;
    // A denormal is read as the fraction of the smallest normal number and one, and the one taken
    // away.
    const std::uint32_t smallest = kRebias + (1U << 23);
    const std::uint32_t denormal = std::bit_cast<std::uint32_t>(
        std::bit_cast<float>(shifted + smallest) - std::bit_cast<float>(smallest));
    const std::uint32_t special =
        kHasInfinity && magnitude == kInfinity ? 0x7f800000 : std::uint32_t{kFloatNan};
    std::uint32_t result = shifted + kRebias;
    result = magnitude < (1U << kMantissa) ? denormal : result;
    result = magnitude >= kInfinity ? special : result;
    return std::bit_cast<float>(result | sign);
  }

  // kSaturate: what is too large, infinity too, becomes the largest finite number.
  template <bool kSaturate>
  [[gnu::always_inline]] static Bits encode(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffff;
    const std::uint32_t sign = (bits >> 31) * kSign;
    const std::uint32_t rebased = magnitude - kRebias;
    const std::uint32_t normal =
        (rebased + (1U << (kShift - 1)) - 1 + ((rebased >> kShift) & 1)) >> kShift;
    const std::uint32_t denormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) +
                                                                std::bit_cast<float>(kMagic)) -
                                   kMagic;
    constexpr std::uint32_t kLargest = kSaturate ? kInfinity - 1 : kInfinity;
    std::uint32_t result = magnitude < kRebias + (1U << 23) ? denormal : normal;
    result = result > kLargest ? kLargest : result;
    result = magnitude > 0x7f800000 ? kNan : (result | sign);
    return static_cast<Bits>(result);
  }
};

using Float16 = SmallFloat<std::uint16_t, 5, 10, 0x7c00, 0x7e00>;
using Float8E4m3 = SmallFloat<std::uint8_t, 4, 3, 0x7f, 0x7f>;
using Float8E5m2 = SmallFloat<std::uint8_t, 5, 2, 0x7c, 0x7e>;

// The upper half of a float32.
struct Bfloat16 {
  using Bits = std::uint16_t;
  [[gnu::always_inline]] static float decode(Bits bits) {
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
  }
  template <bool kSaturate>
  [[gnu::always_inline]] static Bits encode(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(canonical(value));
    return static_cast<Bits>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

}  // namespace ljtrain::accl::reduction
