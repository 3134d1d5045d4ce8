// What a reduction is, element by element, in double precision or exact integers: shares nothing
// with the code under test.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "accl/types.h"

namespace ljtrain::accl::reduction_reference {

// Sign, exponent, mantissa; all values of the type by code, positive half.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
  bool saturates;
  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  std::uint32_t sign_bit() const { return 1U << (bits() - 1); }
  // The first code that is no finite number.
  std::uint32_t finite_end() const {
    return has_infinity ? ((1U << exponent_bits) - 1) << mantissa_bits : sign_bit() - 1;
  }

  double decode(std::uint32_t code) const {
    const std::uint32_t magnitude = code & (sign_bit() - 1);
    const double sign = (code & sign_bit()) != 0 ? -1.0 : 1.0;
    if (magnitude == finite_end() && has_infinity) {
      return sign * std::numeric_limits<double>::infinity();
    }
    if (magnitude >= finite_end()) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    return sign * finite(magnitude);
  }
  // As if the exponent had no upper end.
  double finite(std::uint32_t magnitude) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const int mantissa = static_cast<int>(magnitude & ((1U << mantissa_bits) - 1));
    return exponent == 0
               ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
               : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }
  // The nearest by search among all codes; of two equally near the even one. No NaN.
  std::uint32_t encode(double value, bool saturate) const {
    const std::uint32_t sign = std::signbit(value) ? sign_bit() : 0;
    const double magnitude = std::fabs(value);
    std::uint32_t low = 0;  // the largest code not above the magnitude
    std::uint32_t high = finite_end();
    while (high - low > 1) {
      const std::uint32_t middle = low + (high - low) / 2;
      (finite(middle) <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - finite(low);
    const double above = finite(low + 1) - magnitude;
    const bool up = above < below || (above == below && low % 2 == 1) || std::isinf(magnitude);
    const std::uint32_t nearest = up ? low + 1 : low;
    const std::uint32_t largest = saturate ? finite_end() - 1 : finite_end();
    return sign | (nearest < largest ? nearest : largest);
  }
};

inline const Format* format_of(DataType type) {
  static constexpr Format kHalf{5, 10, true, false};
  static constexpr Format kBrain{8, 7, true, false};
  static constexpr Format kE4m3{4, 3, false, true};
  static constexpr Format kE5m2{5, 2, true, true};
  switch (type) {
    case DataType::kFloat16:
      return &kHalf;
    case DataType::kBfloat16:
      return &kBrain;
    case DataType::kFloat8E4m3:
      return &kE4m3;
    case DataType::kFloat8E5m2:
      return &kE5m2;
    default:
      return nullptr;
  }
}
inline bool is_complex(DataType type) {
  return type == DataType::kComplex64 || type == DataType::kComplex128;
}
inline bool is_double(DataType type) {
  return type == DataType::kFloat64 || type == DataType::kComplex128;
}
inline bool is_real_number(DataType type) {
  return format_of(type) != nullptr || type == DataType::kFloat32 || is_double(type) ||
         is_complex(type);
}
inline bool is_signed_integer(DataType type) {
  return type == DataType::kInt8 || type == DataType::kInt16 || type == DataType::kInt32 ||
         type == DataType::kInt64;
}

struct Operation {
  DataType type;
  ReduceOp op;
  int average_over = 1;
  std::vector<Scale> scales;
};

// A step of the accumulator: exact or correctly rounded in double, then rounded to it.
inline double rounded(DataType type, double value) {
  return is_double(type) ? value : static_cast<double>(static_cast<float>(value));
}

inline double step(const Operation& o, double a, double b) {
  switch (o.op) {
    case ReduceOp::kProd:
      return rounded(o.type, a * b);
    case ReduceOp::kMax:
    case ReduceOp::kMin: {
      if (std::isnan(a) || std::isnan(b)) {
        return std::numeric_limits<double>::quiet_NaN();
      }
      if (a == b) {  // zeros of different sign
        const bool negative = o.op == ReduceOp::kMax ? std::signbit(a) && std::signbit(b)
                                                     : std::signbit(a) || std::signbit(b);
        return negative ? -std::fabs(a) : std::fabs(a);
      }
      return (a > b) == (o.op == ReduceOp::kMax) ? a : b;
    }
    default:
      return rounded(o.type, a + b);
  }
}

inline double load_real(DataType type, const std::uint8_t* from) {
  if (const Format* format = format_of(type)) {
    std::uint32_t code = 0;
    std::memcpy(&code, from, size_of(type));  // little-endian
    return format->decode(code);
  }
  if (is_double(type)) {
    double value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  float value = 0;
  std::memcpy(&value, from, sizeof value);
  return static_cast<double>(value);
}

inline void store_real(const Operation& o, double value, std::uint8_t* to) {
  if (const Format* format = format_of(o.type)) {
    const bool picks = o.op == ReduceOp::kMax || o.op == ReduceOp::kMin;
    const std::uint32_t nan = format->has_infinity
                                  ? format->finite_end() | (1U << (format->mantissa_bits - 1))
                                  : format->finite_end();
    const std::uint32_t code =
        std::isnan(value) ? nan : format->encode(value, format->saturates && !picks);
    std::memcpy(to, &code, size_of(o.type));
  } else if (is_double(o.type)) {
    std::memcpy(to, &value, sizeof value);
  } else {
    const auto narrow = static_cast<float>(value);
    std::memcpy(to, &narrow, sizeof narrow);
  }
}

inline void reduce_real(const Operation& o, const std::vector<const std::uint8_t*>& from,
                        std::uint8_t* to) {
  double total = 0;
  for (std::size_t rank = 0; rank < from.size(); ++rank) {
    double value = load_real(o.type, from[rank]);
    if (o.op == ReduceOp::kPremulSum) {
      value = rounded(o.type, value * rounded(o.type, o.scales[rank].real));
    }
    total = rank == 0 ? value : step(o, total, value);
  }
  if (o.op == ReduceOp::kAvg) {
    total = rounded(o.type, total / o.average_over);
  }
  store_real(o, total, to);
}

inline void multiply_complex(const Operation& o, const std::vector<const std::uint8_t*>& from,
                             std::uint8_t* to) {
  const std::size_t part = size_of(o.type) / 2;
  double real = load_real(o.type, from[0]);
  double imaginary = load_real(o.type, from[0] + part);
  const auto r = [&o](double value) { return rounded(o.type, value); };
  for (std::size_t rank = 1; rank < from.size(); ++rank) {
    const double x = load_real(o.type, from[rank]);
    const double y = load_real(o.type, from[rank] + part);
    const double next = r(r(real * x) - r(imaginary * y));
    imaginary = r(r(real * y) + r(imaginary * x));
    real = next;
  }
  store_real(o, real, to);
  store_real(o, imaginary, to + part);
}

inline __int128 load_integer(DataType type, const std::uint8_t* from) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, size_of(type));
  const int width = static_cast<int>(8 * size_of(type));
  if (is_signed_integer(type) && ((bits >> (width - 1)) & 1) != 0) {
    return static_cast<__int128>(bits) - (static_cast<__int128>(1) << width);
  }
  return static_cast<__int128>(bits);
}

inline __int128 wrapped(DataType type, __int128 value) {
  const auto bits = static_cast<std::uint64_t>(value);
  std::uint8_t bytes[8];
  std::memcpy(bytes, &bits, sizeof bytes);
  return load_integer(type, bytes);
}

inline __int128 step_integer(ReduceOp op, __int128 a, __int128 b) {
  switch (op) {
    case ReduceOp::kProd:
      // Only the lowest 64 bits are asked for; the product of two uint64 does not fit a signed
      // number.
      return static_cast<__int128>(static_cast<unsigned __int128>(a) *
                                   static_cast<unsigned __int128>(b));
    case ReduceOp::kMax:
      return a > b ? a : b;
    case ReduceOp::kMin:
      return a < b ? a : b;
    case ReduceOp::kBitAnd:
      return a & b;
    case ReduceOp::kBitOr:
      return a | b;
    case ReduceOp::kBitXor:
      return a ^ b;
    default:
      return a + b;
  }
}

inline void reduce_integer(const Operation& o, const std::vector<const std::uint8_t*>& from,
                           std::uint8_t* to) {
  __int128 total = 0;
  for (std::size_t rank = 0; rank < from.size(); ++rank) {
    __int128 value = load_integer(o.type, from[rank]);
    if (o.op == ReduceOp::kPremulSum) {
      value = wrapped(o.type, value * o.scales[rank].integer);
    }
    total = rank == 0 ? value : wrapped(o.type, step_integer(o.op, total, value));
  }
  if (o.op == ReduceOp::kAvg) {
    total /= o.average_over;
  }
  const auto bits = static_cast<std::uint64_t>(total);
  std::memcpy(to, &bits, size_of(o.type));
}

inline void reduce_bool(const Operation& o, const std::vector<const std::uint8_t*>& from,
                        std::uint8_t* to) {
  std::size_t set = 0;
  for (std::size_t rank = 0; rank < from.size(); ++rank) {
    const bool scaled_away = o.op == ReduceOp::kPremulSum && o.scales[rank].integer == 0;
    set += *from[rank] != 0 && !scaled_away ? 1 : 0;
  }
  switch (o.op) {
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
    case ReduceOp::kAvg:
      *to = set == from.size() ? 1 : 0;
      break;
    case ReduceOp::kBitXor:
      *to = set % 2 == 1 ? 1 : 0;
      break;
    default:
      *to = set > 0 ? 1 : 0;
  }
}

inline std::vector<std::uint8_t> reduce(const Operation& o,
                                        const std::vector<std::vector<std::uint8_t>>& sources,
                                        std::size_t count) {
  const std::size_t size = size_of(o.type);
  std::vector<std::uint8_t> result(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<const std::uint8_t*> from;
    for (const auto& source : sources) {
      from.push_back(source.data() + i * size);
    }
    std::uint8_t* const to = result.data() + i * size;
    if (o.type == DataType::kBool) {
      reduce_bool(o, from, to);
    } else if (!is_real_number(o.type)) {
      reduce_integer(o, from, to);
    } else if (is_complex(o.type) && o.op == ReduceOp::kProd) {
      multiply_complex(o, from, to);
    } else if (is_complex(o.type)) {
      reduce_real(o, from, to);
      for (auto& pointer : from) {
        pointer += size / 2;
      }
      reduce_real(o, from, to + size / 2);
    } else {
      reduce_real(o, from, to);
    }
  }
  return result;
}

}  // namespace ljtrain::accl::reduction_reference
