// Compiles the loops once per instruction set and chooses among them at run time. Highway's own
// choice is not used: it would bring libhwy.so into libaccl.so, and Debian has no static one.
#include "reduction/kernels.h"

#include <atomic>
#include <vector>

#include "hwy/detect_compiler_arch.h"

// SSSE3 without SSE4 does not occur among x86-64-v2; AVX3_DL and SVE gain these loops nothing.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#define HWY_DISABLE_PCLMUL_AES
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduction/kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h
#include "reduction/copy-inl.h"
#include "reduction/elementwise-inl.h"
#include "reduction/one_pass-inl.h"

HWY_BEFORE_NAMESPACE();
// NOLINTNEXTLINE(modernize-concat-nested-namespaces): the form that Highway asks for
namespace ljtrain::accl::reduction {
namespace HWY_NAMESPACE {

constexpr Kernels make_kernels(const char* name) {
  Kernels table;
  table.name = name;
  add_elementwise(table);
  add_one_passes(table);
  add_copies(table);
  return table;
}

}  // namespace HWY_NAMESPACE
}  // namespace ljtrain::accl::reduction
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ljtrain::accl::reduction {

#if defined(ACCL_REDUCTION_AVX512_BF16)
void sum_bfloat16_avx512(const OnePass& pass);
#endif

namespace {

// A compiler told to use more than the least (-march) leaves out what is below that.
#if HWY_TARGETS & HWY_AVX3
constexpr Kernels kAvx3 = N_AVX3::make_kernels("AVX-512");
#if defined(ACCL_REDUCTION_AVX512_BF16)
constexpr Kernels make_avx3_bf16() {
  Kernels table = N_AVX3::make_kernels("AVX-512 with AVX512_BF16");
  auto& row = table.one_pass[static_cast<std::size_t>(DataType::kBfloat16)];
  row[static_cast<std::size_t>(ReduceOp::kSum)] = sum_bfloat16_avx512;
  row[static_cast<std::size_t>(ReduceOp::kAvg)] = sum_bfloat16_avx512;
  return table;
}
constexpr Kernels kAvx3Bf16 = make_avx3_bf16();
#endif
#endif
#if HWY_TARGETS & HWY_AVX2
constexpr Kernels kAvx2 = N_AVX2::make_kernels("AVX2");
#endif
#if HWY_TARGETS & HWY_SSE4
constexpr Kernels kSse4 = N_SSE4::make_kernels("SSE4");
#endif
#if HWY_TARGETS & HWY_NEON
constexpr Kernels kNeon = N_NEON::make_kernels("NEON");
#endif
#if HWY_TARGETS & HWY_SCALAR
constexpr Kernels kScalar = N_SCALAR::make_kernels("scalar");
#endif

#if HWY_TARGETS & (HWY_AVX2 | HWY_AVX3)
// __builtin_cpu_supports also asks whether the operating system saves the registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0 &&
         __builtin_cpu_supports("f16c") != 0;
}
#endif
#if HWY_TARGETS & HWY_AVX3
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0;
}
#endif

std::vector<const Kernels*> find_kernels() {
  std::vector<const Kernels*> found;
#if HWY_TARGETS & HWY_AVX3
#if defined(ACCL_REDUCTION_AVX512_BF16)
  if (has_avx512() && __builtin_cpu_supports("avx512bf16") != 0) {
    found.push_back(&kAvx3Bf16);
  }
#endif
  if (has_avx512()) {
    found.push_back(&kAvx3);
  }
#endif
#if HWY_TARGETS & HWY_AVX2
  if (has_avx2()) {
    found.push_back(&kAvx2);
  }
#endif
#if HWY_TARGETS & HWY_SSE4
  if (__builtin_cpu_supports("sse4.2") != 0) {
    found.push_back(&kSse4);
  }
#endif
#if HWY_TARGETS & HWY_NEON
  found.push_back(&kNeon);
#endif
#if HWY_TARGETS & HWY_SCALAR
  found.push_back(&kScalar);
#endif
  return found;
}

std::atomic<const Kernels*> chosen_kernels{nullptr};

}  // namespace

std::span<const Kernels* const> available_kernels() {
  static const std::vector<const Kernels*> available = find_kernels();
  return available;
}

const Kernels& kernels() {
  const Kernels* chosen = chosen_kernels.load(std::memory_order_relaxed);
  if (chosen == nullptr) {
    chosen = available_kernels().front();
    chosen_kernels.store(chosen, std::memory_order_relaxed);
  }
  return *chosen;
}

void set_kernels(const Kernels* chosen) { chosen_kernels.store(chosen, std::memory_order_relaxed); }

}  // namespace ljtrain::accl::reduction
#endif
