// Sums and averages of bfloat16 with the conversion instructions of AVX512_BF16, which
// Highway 1.0.3 does not know. Compiled with flags of its own (CMakeLists.txt): nothing here may be
// an inline function shared with other files.
//
// VCVTNE2PS2BF16 takes denormals for zero and keeps the bits of NaNs. So that the result is the
// same as on other processors, a vector that holds either is rounded by integer operations.
#include "reduction/kernels.h"

#if defined(__AVX512BF16__)

#include <immintrin.h>

namespace ljtrain::accl::reduction {
void sum_bfloat16_avx512(const OnePass& pass);

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kElement = 2;
constexpr int kNanOrDenormal = 0x01 | 0x20 | 0x80;  // quiet NaN, denormal, signalling NaN

// Elements of even and of odd index, in float32.
struct Pair {
  __m512 even;
  __m512 odd;
};

struct Divisor {
  bool divides;
  bool multiplies;
  __m512 by;
};

Divisor make_divisor(int over) {
  const bool power_of_two = (over & (over - 1)) == 0;
  const auto value = static_cast<float>(over);
  return {.divides = !power_of_two,
          .multiplies = power_of_two && over != 1,
          .by = _mm512_set1_ps(power_of_two ? 1.0F / value : value)};
}

inline __m512i upper_halves() { return _mm512_set1_epi32(static_cast<int>(0xffff0000U)); }

inline Pair widened(__m512i memory) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(memory, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(memory, upper_halves()))};
}

inline __m512i rounded_by_integers(__m512 value) {
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i bits =
      _mm512_mask_mov_epi32(_mm512_castps_si512(value), nan, _mm512_set1_epi32(0x7fc00000));
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
}

inline __m512i narrowed(Pair sums, __m512i interleave) {
  const __mmask16 special = _mm512_fpclass_ps_mask(sums.even, kNanOrDenormal) |
                            _mm512_fpclass_ps_mask(sums.odd, kNanOrDenormal);
  if (__builtin_expect(special != 0, 0)) {
    return _mm512_or_si512(_mm512_srli_epi32(rounded_by_integers(sums.even), 16),
                           _mm512_and_si512(rounded_by_integers(sums.odd), upper_halves()));
  }
  const __m512bh halves = _mm512_cvtne2ps_pbh(sums.odd, sums.even);
  return _mm512_permutexvar_epi16(interleave, reinterpret_cast<__m512i>(halves));
}

inline void divide(Pair& sums, const Divisor& divisor) {
  if (divisor.multiplies) {
    sums.even = _mm512_mul_ps(sums.even, divisor.by);
    sums.odd = _mm512_mul_ps(sums.odd, divisor.by);
  } else if (divisor.divides) {
    sums.even = _mm512_div_ps(sums.even, divisor.by);
    sums.odd = _mm512_div_ps(sums.odd, divisor.by);
  }
}

// The places of 0, 16, 1, 17, ...: even elements come out of the conversion first.
__m512i make_interleave() {
  const __m512i first = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_or_si512(first,
                         _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(16)), 16));
}

// kSources 0: any number.
template <std::size_t kSources>
class Loop {
 public:
  explicit Loop(const OnePass& pass)
      : interleave_(make_interleave()), divisor_(make_divisor(pass.average_over)), pass_(pass) {
    for (std::size_t s = 0; s < kSources; ++s) {
      fixed_[s] = static_cast<const char*>(pass.sources[s]);
    }
  }

  void run() const {
    const std::size_t bytes = pass_.count * kElement;
    const std::size_t past = reinterpret_cast<std::size_t>(pass_.destination) % kLine;
    const std::size_t head = (kLine - past) % kLine;
    std::size_t at = 0;
    if (pass_.streaming && past % kElement == 0 && head + kLine <= bytes) {
      if (head > 0) {
        partial(0, head);
      }
      at = whole<true>(head, bytes);
    } else {
      at = whole<false>(0, bytes);
    }
    if (at < bytes) {
      partial(at, bytes - at);
    }
  }

 private:
  const char* source(std::size_t s) const {
    return kSources == 0 ? static_cast<const char*>(pass_.sources[s]) : fixed_[s];
  }
  std::size_t source_count() const { return kSources == 0 ? pass_.source_count : kSources; }

  template <bool kStream>
  std::size_t whole(std::size_t at, std::size_t bytes) const {
    for (; at + 2 * kLine <= bytes; at += 2 * kLine) {
      vectors<kStream, 2>(at);
    }
    for (; at + kLine <= bytes; at += kLine) {
      vectors<kStream, 1>(at);
    }
    return at;
  }

  template <bool kStream, std::size_t kVectors>
  void vectors(std::size_t at) const {
    Pair sums[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[v] = widened(_mm512_loadu_si512(source(0) + at + v * kLine));
    }
    for (std::size_t s = 1; s < source_count(); ++s) {
      for (std::size_t v = 0; v < kVectors; ++v) {
        add(sums[v], widened(_mm512_loadu_si512(source(s) + at + v * kLine)));
      }
    }
    for (std::size_t v = 0; v < kVectors; ++v) {
      divide(sums[v], divisor_);
      const __m512i result = narrowed(sums[v], interleave_);
      char* const out = static_cast<char*>(pass_.destination) + at + v * kLine;
      if constexpr (kStream) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(out), result);
      } else {
        _mm512_storeu_si512(out, result);
      }
      if (pass_.second_destination != nullptr) {
        _mm512_storeu_si512(static_cast<char*>(pass_.second_destination) + at + v * kLine, result);
      }
    }
  }

  void partial(std::size_t at, std::size_t bytes) const {
    const __mmask32 mask = (1U << (bytes / kElement)) - 1;
    Pair sums = widened(_mm512_maskz_loadu_epi16(mask, source(0) + at));
    for (std::size_t s = 1; s < source_count(); ++s) {
      add(sums, widened(_mm512_maskz_loadu_epi16(mask, source(s) + at)));
    }
    divide(sums, divisor_);
    const __m512i result = narrowed(sums, interleave_);
    _mm512_mask_storeu_epi16(static_cast<char*>(pass_.destination) + at, mask, result);
    if (pass_.second_destination != nullptr) {
      _mm512_mask_storeu_epi16(static_cast<char*>(pass_.second_destination) + at, mask, result);
    }
  }

  static void add(Pair& sums, const Pair& other) {
    sums.even = _mm512_add_ps(sums.even, other.even);
    sums.odd = _mm512_add_ps(sums.odd, other.odd);
  }

  const __m512i interleave_;
  const Divisor divisor_;
  const OnePass& pass_;
  const char* fixed_[kSources == 0 ? 1 : kSources] = {};
};

}  // namespace

void sum_bfloat16_avx512(const OnePass& pass) {
  switch (pass.source_count) {
    case 2:
      return Loop<2>(pass).run();
    case 3:
      return Loop<3>(pass).run();
    case 4:
      return Loop<4>(pass).run();
    default:
      return Loop<0>(pass).run();
  }
}

}  // namespace ljtrain::accl::reduction

#endif
