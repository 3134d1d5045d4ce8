// Reductions of floating-point types in one pass over all sources, with Highway. Included once per
// instruction set by kernels.cc.
//
// Elements before the first and after the last whole vector go through the same code by way of a
// padded buffer, so every element is computed alike.
#if defined(ACCL_REDUCTION_ONE_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ACCL_REDUCTION_ONE_PASS_INL_H_
#undef ACCL_REDUCTION_ONE_PASS_INL_H_
#else
#define ACCL_REDUCTION_ONE_PASS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "reduction/formats-inl.h"
#include "reduction/kernels.h"

HWY_BEFORE_NAMESPACE();
// NOLINTNEXTLINE(modernize-concat-nested-namespaces): the form that Highway asks for
namespace ljtrain::accl::reduction {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct AddVectors {
  static constexpr bool kScales = false;
  static constexpr bool kDivides = true;
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::Add(a, b);
  }
};
struct AddScaledVectors {
  static constexpr bool kScales = true;
  static constexpr bool kDivides = false;
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::Add(a, b);
  }
};
struct MultiplyVectors {
  static constexpr bool kScales = false;
  static constexpr bool kDivides = false;
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::Mul(a, b);
  }
};
// As Extreme in elementwise-inl.h. A NaN in `b` is chosen because no comparison with it holds.
template <bool kLarger>
struct ExtremeVectors {
  static constexpr bool kScales = false;
  static constexpr bool kDivides = false;
  template <class D, class V>
  static HWY_INLINE V apply(D d, V a, V b) {
    const hn::RebindToUnsigned<D> bits;
    const auto x = hn::BitCast(bits, a);
    const auto y = hn::BitCast(bits, b);
    const V same = hn::BitCast(d, kLarger ? hn::And(x, y) : hn::Or(x, y));
    const V chosen = hn::IfThenElse(kLarger ? hn::Gt(a, b) : hn::Lt(a, b), a, b);
    return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Eq(a, b), same, chosen));
  }
};

// kSources 0: any number of sources. `kPerElement`: 2 for complex numbers taken part by part.
template <class Format, class Op, std::size_t kSources, std::size_t kPerElement>
class OnePassLoop {
  using Accumulator = Format::Accumulator;
  using Real = hn::TFromD<Accumulator>;
  using Vector = hn::Vec<Accumulator>;
  using Memory = Format::Memory;
  using Lane = hn::TFromD<Memory>;
  static constexpr std::size_t kParts = Format::kParts;
  static constexpr std::size_t kElement = sizeof(typename Format::Element);
  static constexpr std::size_t kBytes = hn::MaxLanes(Memory()) * sizeof(Lane);
  static constexpr std::size_t kUnroll = 4 / kParts;
  static constexpr std::size_t kLine = 64;

 public:
  explicit OnePassLoop(const OnePass& pass) : pass_(pass) {
    for (std::size_t s = 0; s < kSources; ++s) {
      fixed_[s] = static_cast<const std::uint8_t*>(pass.sources[s]);
    }
    const auto over = static_cast<unsigned>(pass.average_over);
    // Division by a power of two is multiplication with its inverse, to the last bit.
    const bool power_of_two = (over & (over - 1)) == 0;
    multiplies_ = power_of_two && over != 1;
    divides_ = !power_of_two;
    const Real divisor = static_cast<Real>(over);
    by_ = power_of_two ? Real{1} / divisor : divisor;
  }

  void run() const {
    const std::size_t bytes = pass_.count * kElement * kPerElement;
    const auto address = reinterpret_cast<std::uintptr_t>(pass_.destination);
    const std::size_t head = (kLine - address % kLine) % kLine;
    if (!pass_.streaming || head % kElement != 0 || head + kLine > bytes) {
      range<false>(0, bytes);
      return;
    }
    if (head > 0) {
      range<false>(0, head);
    }
    range<true>(head, bytes);
  }

 private:
  template <bool kStream>
  void range(std::size_t at, std::size_t end) const {
    for (; at + kUnroll * kBytes <= end; at += kUnroll * kBytes) {
      vectors<kStream, kUnroll>(at);
    }
    if constexpr (kUnroll > 1) {
      for (; at + kBytes <= end; at += kBytes) {
        vectors<kStream, 1>(at);
      }
    }
    if (at < end) {
      partial(at, end - at);
    }
  }

  std::size_t source_count() const { return kSources == 0 ? pass_.source_count : kSources; }
  HWY_INLINE const std::uint8_t* source(std::size_t s) const {
    return kSources == 0 ? static_cast<const std::uint8_t*>(pass_.sources[s]) : fixed_[s];
  }
  HWY_INLINE void scale(Vector* parts, std::size_t count, std::size_t s) const {
    if constexpr (Op::kScales) {
      const auto factor = hn::Set(Accumulator(), static_cast<Real>(pass_.scales[s].real));
      for (std::size_t i = 0; i < count; ++i) {
        parts[i] = hn::Mul(parts[i], factor);
      }
    }
  }
  HWY_INLINE void divide(Vector* parts, std::size_t count) const {
    if constexpr (Op::kDivides) {
      const auto by = hn::Set(Accumulator(), by_);
      if (multiplies_) {
        for (std::size_t i = 0; i < count; ++i) {
          parts[i] = hn::Mul(parts[i], by);
        }
      } else if (divides_) {
        for (std::size_t i = 0; i < count; ++i) {
          parts[i] = hn::Div(parts[i], by);
        }
      }
    }
  }

  template <std::size_t kVectors>
  HWY_INLINE void load(std::size_t s, const std::uint8_t* from, Vector* parts) const {
    for (std::size_t v = 0; v < kVectors; ++v) {
      Format::load(from + v * kBytes, parts + v * kParts);
    }
    scale(parts, kVectors * kParts, s);
  }

  template <bool kStream, std::size_t kVectors>
  HWY_INLINE void vectors(std::size_t at) const {
    constexpr std::size_t kAll = kVectors * kParts;
    Vector total[kAll];
    load<kVectors>(0, source(0) + at, total);
    for (std::size_t s = 1; s < source_count(); ++s) {
      Vector next[kAll];
      load<kVectors>(s, source(s) + at, next);
      for (std::size_t i = 0; i < kAll; ++i) {
        total[i] = Op::apply(Accumulator(), total[i], next[i]);
      }
    }
    divide(total, kAll);
    hn::Vec<Memory> results[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      results[v] = Format::encode(total + v * kParts);
    }
    store<kStream, kVectors>(results, static_cast<std::uint8_t*>(pass_.destination) + at);
    if (pass_.second_destination != nullptr) {
      store<false, kVectors>(results, static_cast<std::uint8_t*>(pass_.second_destination) + at);
    }
  }
  template <bool kStream, std::size_t kVectors>
  static HWY_INLINE void store(const hn::Vec<Memory>* results, std::uint8_t* to) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      auto* const lanes = reinterpret_cast<Lane*>(to + v * kBytes);
      if constexpr (kStream) {
        hn::Stream(results[v], Memory(), lanes);
      } else {
        hn::StoreU(results[v], Memory(), lanes);
      }
    }
  }

  // Less than a vector.
  HWY_NOINLINE void partial(std::size_t at, std::size_t bytes) const {
    alignas(64) std::uint8_t buffer[kBytes] = {};
    std::memcpy(buffer, source(0) + at, bytes);
    Vector total[kParts];
    load<1>(0, buffer, total);
    for (std::size_t s = 1; s < source_count(); ++s) {
      std::memcpy(buffer, source(s) + at, bytes);
      Vector next[kParts];
      load<1>(s, buffer, next);
      for (std::size_t i = 0; i < kParts; ++i) {
        total[i] = Op::apply(Accumulator(), total[i], next[i]);
      }
    }
    divide(total, kParts);
    const hn::Vec<Memory> result = Format::encode(total);
    store<false, 1>(&result, buffer);
    std::memcpy(static_cast<std::uint8_t*>(pass_.destination) + at, buffer, bytes);
    if (pass_.second_destination != nullptr) {
      std::memcpy(static_cast<std::uint8_t*>(pass_.second_destination) + at, buffer, bytes);
    }
  }

  const OnePass& pass_;
  bool multiplies_ = false;
  bool divides_ = false;
  Real by_{};
  // Of a fixed number of sources the pointers stay in registers.
  const std::uint8_t* fixed_[kSources == 0 ? 1 : kSources] = {};
};

template <class Format, class Op, std::size_t kPerElement>
void one_pass(const OnePass& pass) {
  OnePassLoop<Format, Op, 0, kPerElement>(pass).run();
}
template <class Format, std::size_t kPerElement>
void one_pass_sum(const OnePass& pass) {
  switch (pass.source_count) {
    case 2:
      return OnePassLoop<Format, AddVectors, 2, kPerElement>(pass).run();
    case 3:
      return OnePassLoop<Format, AddVectors, 3, kPerElement>(pass).run();
    case 4:
      return OnePassLoop<Format, AddVectors, 4, kPerElement>(pass).run();
    default:
      return OnePassLoop<Format, AddVectors, 0, kPerElement>(pass).run();
  }
}

template <class Format, class Picking, std::size_t kPerElement>
constexpr void add_one_pass(Kernels& table, DataType type) {
  auto& row = table.one_pass[static_cast<std::size_t>(type)];
  const auto set_op = [&row](ReduceOp op, OnePassFunction function) {
    row[static_cast<std::size_t>(op)] = function;
  };
  set_op(ReduceOp::kSum, one_pass_sum<Format, kPerElement>);
  set_op(ReduceOp::kAvg, one_pass_sum<Format, kPerElement>);
  set_op(ReduceOp::kPremulSum, one_pass<Format, AddScaledVectors, kPerElement>);
  if constexpr (kPerElement == 1) {
    set_op(ReduceOp::kProd, one_pass<Format, MultiplyVectors, 1>);
    set_op(ReduceOp::kMax, one_pass<Picking, ExtremeVectors<true>, 1>);
    set_op(ReduceOp::kMin, one_pass<Picking, ExtremeVectors<false>, 1>);
  }
}
template <class Format, std::size_t kPerElement>
constexpr void add_one_pass(Kernels& table, DataType type) {
  add_one_pass<Format, Format, kPerElement>(table, type);
}

constexpr void add_one_passes(Kernels& table) {
  add_one_pass<NativeFormat<float>, 1>(table, DataType::kFloat32);
  add_one_pass<NativeFormat<float>, 2>(table, DataType::kComplex64);
#if HWY_HAVE_FLOAT64
  add_one_pass<NativeFormat<double>, 1>(table, DataType::kFloat64);
  add_one_pass<NativeFormat<double>, 2>(table, DataType::kComplex128);
#endif
  add_one_pass<Float16Format, 1>(table, DataType::kFloat16);
  add_one_pass<Bfloat16Format, 1>(table, DataType::kBfloat16);
  add_one_pass<EmulatedFormat<Float8E4m3, true>, EmulatedFormat<Float8E4m3, false>, 1>(
      table, DataType::kFloat8E4m3);
  add_one_pass<EmulatedFormat<Float8E5m2, true>, EmulatedFormat<Float8E5m2, false>, 1>(
      table, DataType::kFloat8E5m2);
}

}  // namespace HWY_NAMESPACE
}  // namespace ljtrain::accl::reduction
HWY_AFTER_NAMESPACE();

#endif
