// Peak arithmetic rates of accelerators, for MFU. Dense rates only: the doubled figures of NVIDIA's
// data sheets hold for 2:4 sparse matrices. A device that is not in the table has no peak here, and
// never its neighbour's: names must match whole.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ljtrain::ljperf {

// Types of matrix multiplication. All accumulate in fp32; kFp32 is without tensor cores.
enum class PeakType : std::uint8_t { kBf16, kFp16, kTf32, kFp32 };

struct DevicePeak {
  std::string_view name;  // as NVML and CUDA (or ROCm) report it, without "NVIDIA "
  // Dense TFLOP/s (10^12) of one device as the runtime counts devices; 0: no such units.
  double bf16 = 0;
  double fp16 = 0;
  double tf32 = 0;
  double fp32 = 0;
};

// Every device known.
std::span<const DevicePeak> device_peaks();

// Peak FLOP/s of the device with that name. nullopt: not in the table (also MIG slices, virtual
// GPUs and variants with a suffix), or it has no units for the type. Upper and lower case must
// match; blanks around the name and a leading "NVIDIA " (older drivers leave it out) do not matter.
std::optional<double> peak_flops_per_second(std::string_view device_name, PeakType type);

}  // namespace ljtrain::ljperf
