// Loops over single elements, for every type and operator: plain, for the compiler to vectorise.
// Included once per instruction set by kernels.cc, hence no include guard of the usual kind.
#if defined(ACCL_REDUCTION_ELEMENTWISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCL_REDUCTION_ELEMENTWISE_INL_H_
#undef ACCL_REDUCTION_ELEMENTWISE_INL_H_
#else
#define ACCL_REDUCTION_ELEMENTWISE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "reduction/encodings.h"
#include "reduction/kernels.h"

// The iterations of the loop that follows are independent. Only g++ has this pragma.
#if defined(__clang__)
#define ACCL_IVDEP
#else
#define ACCL_IVDEP _Pragma("GCC ivdep")
#endif

HWY_BEFORE_NAMESPACE();
// NOLINTNEXTLINE(modernize-concat-nested-namespaces): the form that Highway asks for
namespace ljtrain::accl::reduction {
namespace HWY_NAMESPACE {

// Callers give pointers of any alignment, to memory of any type.
template <class T>
struct [[gnu::packed, gnu::may_alias]] Loose {
  T value;
};
template <class T>
Loose<T>* loose(void* pointer) {
  return static_cast<Loose<T>*>(pointer);
}
template <class T>
const Loose<T>* loose(const void* pointer) {
  return static_cast<const Loose<T>*>(pointer);
}

// At least 32 bits wide, unsigned: sums and products that overflow wrap.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

struct Add {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return canonical(a + b);
    } else {
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    }
  }
};
struct Multiply {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return canonical(a * b);
    } else {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    }
  }
};

// The larger (smaller) of two; NaN if either is; +0 is larger than -0.
template <bool kLarger>
struct Extreme {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    const T chosen = (kLarger ? a > b : a < b) ? a : b;
    if constexpr (std::is_floating_point_v<T>) {
      using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
      const Bits x = std::bit_cast<Bits>(a);
      const Bits y = std::bit_cast<Bits>(b);
      // Equal numbers have equal bits, but for the sign of zero.
      const Bits same = kLarger ? x & y : x | y;
      const T result = a == b ? std::bit_cast<T>(same) : chosen;
      return canonical(a != a ? a : (b != b ? b : result));
    } else {
      return chosen;
    }
  }
};
struct And {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  [[gnu::always_inline]] static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// kPerElement: 2 for complex numbers combined part by part.
template <class Op, class T, std::size_t kPerElement = 1>
void combine(void* out, const void* a, const void* b, std::size_t count) {
  Loose<T>* const o = loose<T>(out);
  const Loose<T>* const x = loose<T>(a);
  const Loose<T>* const y = loose<T>(b);
  const std::size_t values = count * kPerElement;
  // `out` overlaps `a` or `b` only by being equal.
  ACCL_IVDEP
  for (std::size_t i = 0; i < values; ++i) {
    o[i].value = Op::template apply<T>(x[i].value, y[i].value);
  }
}

// In two loops: of the one, g++ 12 makes fused multiply-adds in spite of -ffp-contract=off.
template <class T>
void combine_complex_product(void* out, const void* a, const void* b, std::size_t count) {
  constexpr std::size_t kBlock = 64;
  Loose<T>* o = loose<T>(out);
  const Loose<T>* x = loose<T>(a);
  const Loose<T>* y = loose<T>(b);
  T straight[2 * kBlock];
  T crossed[2 * kBlock];
  for (std::size_t left = count; left > 0;) {
    const std::size_t size = std::min(left, kBlock);
    for (std::size_t i = 0; i < size; ++i) {
      straight[2 * i] = x[2 * i].value * y[2 * i].value;
      straight[2 * i + 1] = x[2 * i + 1].value * y[2 * i + 1].value;
      crossed[2 * i] = x[2 * i].value * y[2 * i + 1].value;
      crossed[2 * i + 1] = x[2 * i + 1].value * y[2 * i].value;
    }
    for (std::size_t i = 0; i < size; ++i) {
      o[2 * i].value = canonical(straight[2 * i] - straight[2 * i + 1]);
      o[2 * i + 1].value = canonical(crossed[2 * i] + crossed[2 * i + 1]);
    }
    o += 2 * size;
    x += 2 * size;
    y += 2 * size;
    left -= size;
  }
}

template <std::size_t kBytes>
void widen_same(void* accumulator, const void* source, std::size_t count) {
  if (count > 0) {
    std::memcpy(accumulator, source, count * kBytes);
  }
}

template <class T, std::size_t kPerElement = 1>
void widen_scaled_same(void* accumulator, const void* source, std::size_t count,
                       const Scale& scale) {
  T factor{};
  if constexpr (std::is_floating_point_v<T>) {
    factor = static_cast<T>(scale.real);
  } else {
    factor = static_cast<T>(scale.integer);
  }
  Loose<T>* const o = loose<T>(accumulator);
  const Loose<T>* const x = loose<T>(source);
  const std::size_t values = count * kPerElement;
  ACCL_IVDEP
  for (std::size_t i = 0; i < values; ++i) {
    o[i].value = Multiply::apply<T>(x[i].value, factor);
  }
}

template <class Encoding>
void widen_float(void* accumulator, const void* source, std::size_t count) {
  Loose<float>* const o = loose<float>(accumulator);
  const auto* const x = loose<typename Encoding::Bits>(source);
  ACCL_IVDEP
  for (std::size_t i = 0; i < count; ++i) {
    o[i].value = Encoding::decode(x[i].value);
  }
}
template <class Encoding>
void widen_scaled_float(void* accumulator, const void* source, std::size_t count,
                        const Scale& scale) {
  const auto factor = static_cast<float>(scale.real);
  Loose<float>* const o = loose<float>(accumulator);
  const auto* const x = loose<typename Encoding::Bits>(source);
  ACCL_IVDEP
  for (std::size_t i = 0; i < count; ++i) {
    o[i].value = canonical(Encoding::decode(x[i].value) * factor);
  }
}

inline void widen_bool(void* accumulator, const void* source, std::size_t count) {
  Loose<std::uint8_t>* const o = loose<std::uint8_t>(accumulator);
  const Loose<std::uint8_t>* const x = loose<std::uint8_t>(source);
  ACCL_IVDEP
  for (std::size_t i = 0; i < count; ++i) {
    o[i].value = x[i].value != 0 ? 1 : 0;
  }
}
inline void widen_scaled_bool(void* accumulator, const void* source, std::size_t count,
                              const Scale& scale) {
  widen_bool(accumulator, source, count);
  if (scale.integer == 0 && count > 0) {
    std::memset(accumulator, 0, count);
  }
}

template <class T>
[[gnu::always_inline]] inline T divide(T value, int divisor) {
  if constexpr (std::is_floating_point_v<T> || sizeof(T) == 8) {
    return value / static_cast<T>(divisor);
  } else {
    // Exact: the quotient of integers of 32 bits differs from the next integer by more than a
    // double rounds.
    using Quotient =
        std::conditional_t<std::is_same_v<T, std::uint32_t>, std::int64_t, std::int32_t>;
    return static_cast<T>(static_cast<Quotient>(static_cast<double>(value) / divisor));
  }
}

template <class T, std::size_t kPerElement = 1>
void narrow_same(void* out, const void* accumulator, std::size_t count, int average_over,
                 Overflow /*overflow*/) {
  const std::size_t values = count * kPerElement;
  if (average_over == 1) {
    if (out != accumulator && count > 0) {
      std::memcpy(out, accumulator, values * sizeof(T));
    }
    return;
  }
  Loose<T>* const o = loose<T>(out);
  const Loose<T>* const x = loose<T>(accumulator);
  ACCL_IVDEP
  for (std::size_t i = 0; i < values; ++i) {
    o[i].value = divide<T>(x[i].value, average_over);
  }
}

template <class Encoding, bool kSaturate, bool kDivide>
void narrow_float_loop(void* out, const void* accumulator, std::size_t count, float divisor) {
  auto* const o = loose<typename Encoding::Bits>(out);
  const Loose<float>* const x = loose<float>(accumulator);
  ACCL_IVDEP
  for (std::size_t i = 0; i < count; ++i) {
    const float value = kDivide ? x[i].value / divisor : x[i].value;
    o[i].value = Encoding::template encode<kSaturate>(value);
  }
}
template <class Encoding>
void narrow_float(void* out, const void* accumulator, std::size_t count, int average_over,
                  Overflow overflow) {
  constexpr bool kMaySaturate = sizeof(typename Encoding::Bits) == 1;
  const auto divisor = static_cast<float>(average_over);
  if (average_over != 1) {
    narrow_float_loop<Encoding, kMaySaturate, true>(out, accumulator, count, divisor);
  } else if (overflow == Overflow::kSaturate) {
    narrow_float_loop<Encoding, kMaySaturate, false>(out, accumulator, count, divisor);
  } else {
    narrow_float_loop<Encoding, false, false>(out, accumulator, count, divisor);
  }
}

// A mean of bools, truncated, is 1 only where all are: combining has taken the logical and, nothing
// is left to divide.
inline void narrow_bool(void* out, const void* accumulator, std::size_t count, int /*average_over*/,
                        Overflow overflow) {
  narrow_same<std::uint8_t>(out, accumulator, count, 1, overflow);
}

using Row = std::array<Combine, kReduceOps>;
constexpr void set(Row& row, ReduceOp op, Combine function) {
  row[static_cast<std::size_t>(op)] = function;
}

// `U`: unsigned, of T's size; it has the same sums, products and bit operations.
template <class T, class U>
constexpr Row integer_row() {
  Row row{};
  set(row, ReduceOp::kSum, combine<Add, U>);
  set(row, ReduceOp::kAvg, combine<Add, U>);
  set(row, ReduceOp::kPremulSum, combine<Add, U>);
  set(row, ReduceOp::kProd, combine<Multiply, U>);
  set(row, ReduceOp::kMax, combine<Extreme<true>, T>);
  set(row, ReduceOp::kMin, combine<Extreme<false>, T>);
  set(row, ReduceOp::kBitAnd, combine<And, U>);
  set(row, ReduceOp::kBitOr, combine<Or, U>);
  set(row, ReduceOp::kBitXor, combine<Xor, U>);
  return row;
}
// Of bytes that are 0 or 1. Sum is "or" and product "and", as PyTorch's process groups have it.
constexpr Row bool_row() {
  Row row{};
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kPremulSum, ReduceOp::kMax, ReduceOp::kBitOr}) {
    set(row, op, combine<Or, std::uint8_t>);
  }
  for (const ReduceOp op : {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kAvg, ReduceOp::kBitAnd}) {
    set(row, op, combine<And, std::uint8_t>);
  }
  set(row, ReduceOp::kBitXor, combine<Xor, std::uint8_t>);
  return row;
}
template <class T>
constexpr Row floating_row() {
  Row row{};
  set(row, ReduceOp::kSum, combine<Add, T>);
  set(row, ReduceOp::kAvg, combine<Add, T>);
  set(row, ReduceOp::kPremulSum, combine<Add, T>);
  set(row, ReduceOp::kProd, combine<Multiply, T>);
  set(row, ReduceOp::kMax, combine<Extreme<true>, T>);
  set(row, ReduceOp::kMin, combine<Extreme<false>, T>);
  return row;
}
template <class T>
constexpr Row complex_row() {
  Row row{};
  set(row, ReduceOp::kSum, combine<Add, T, 2>);
  set(row, ReduceOp::kAvg, combine<Add, T, 2>);
  set(row, ReduceOp::kPremulSum, combine<Add, T, 2>);
  set(row, ReduceOp::kProd, combine_complex_product<T>);
  return row;
}

template <class T, class U>
constexpr void add_integer(Kernels& table, DataType type) {
  const auto i = static_cast<std::size_t>(type);
  table.widen[i] = widen_same<sizeof(T)>;
  table.widen_scaled[i] = widen_scaled_same<U>;
  table.combine[i] = integer_row<T, U>();
  table.narrow[i] = narrow_same<T>;
}
template <class Encoding>
constexpr void add_small_float(Kernels& table, DataType type) {
  const auto i = static_cast<std::size_t>(type);
  table.widen[i] = widen_float<Encoding>;
  table.widen_scaled[i] = widen_scaled_float<Encoding>;
  table.narrow[i] = narrow_float<Encoding>;
}
template <class T, std::size_t kPerElement>
constexpr void add_float(Kernels& table, DataType type, const Row& row) {
  const auto i = static_cast<std::size_t>(type);
  table.widen[i] = widen_same<sizeof(T) * kPerElement>;
  table.widen_scaled[i] = widen_scaled_same<T, kPerElement>;
  table.combine[i] = row;
  table.narrow[i] = narrow_same<T, kPerElement>;
}

constexpr void add_elementwise(Kernels& table) {
  add_integer<std::int8_t, std::uint8_t>(table, DataType::kInt8);
  add_integer<std::uint8_t, std::uint8_t>(table, DataType::kUint8);
  add_integer<std::int16_t, std::uint16_t>(table, DataType::kInt16);
  add_integer<std::uint16_t, std::uint16_t>(table, DataType::kUint16);
  add_integer<std::int32_t, std::uint32_t>(table, DataType::kInt32);
  add_integer<std::uint32_t, std::uint32_t>(table, DataType::kUint32);
  add_integer<std::int64_t, std::uint64_t>(table, DataType::kInt64);
  add_integer<std::uint64_t, std::uint64_t>(table, DataType::kUint64);
  add_small_float<Float16>(table, DataType::kFloat16);
  add_small_float<Bfloat16>(table, DataType::kBfloat16);
  add_small_float<Float8E4m3>(table, DataType::kFloat8E4m3);
  add_small_float<Float8E5m2>(table, DataType::kFloat8E5m2);
  add_float<float, 1>(table, DataType::kFloat32, floating_row<float>());
  add_float<double, 1>(table, DataType::kFloat64, floating_row<double>());
  add_float<float, 2>(table, DataType::kComplex64, complex_row<float>());
  add_float<double, 2>(table, DataType::kComplex128, complex_row<double>());
  const auto i = static_cast<std::size_t>(DataType::kBool);
  table.widen[i] = widen_bool;
  table.widen_scaled[i] = widen_scaled_bool;
  table.combine[i] = bool_row();
  table.narrow[i] = narrow_bool;
}

}  // namespace HWY_NAMESPACE
}  // namespace ljtrain::accl::reduction
HWY_AFTER_NAMESPACE();

#endif
