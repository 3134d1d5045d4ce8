// Peak rates of accelerators: arithmetic for MFU, and memory for plans. Dense rates only: the
// doubled figures of NVIDIA's data sheets hold for 2:4 sparse matrices. A device that is not in the
// table has no peak here, and never its neighbour's: names must match whole.
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

struct DeviceMemory {
  std::string_view name;  // as DevicePeak's
  // What the maker calls its size: within 1 % of GiB as the runtime counts them. 0: not settled.
  double memory_gb = 0;
  double bandwidth = 0;  // GB/s (10^9)
};

// The device a person means: the name above in any case, without its maker, blanks or dashes
// ("l40s", "rtx 4090"), or a short one ("h100" is the SXM module of 80 GB). For what is asked for,
// never for what is found: names that a machine reports go to peak_flops_per_second. Throws
// UserError with the nearest names.
const DeviceMemory& find_device(std::string_view name);

}  // namespace ljtrain::ljperf
