#include "catalogue/devices.h"

namespace ljtrain::ljperf {
namespace {

constexpr double kTera = 1e12;
constexpr std::string_view kVendor = "NVIDIA ";

// Name, then bf16, fp16, tf32, fp32 in TFLOP/s. Each row or group names its source; where a data
// sheet gives only the sparse rate, half of it stands here.
constexpr DevicePeak kPeaks[] = {
    // NVIDIA Tesla V100 data sheet (2020). No bf16, no tf32.
    {"Tesla V100-SXM2-16GB", 0, 125, 0, 15.7},
    {"Tesla V100-SXM2-32GB", 0, 125, 0, 15.7},
    {"Tesla V100-PCIE-16GB", 0, 112, 0, 14},
    {"Tesla V100-PCIE-32GB", 0, 112, 0, 14},
    {"Tesla V100S-PCIE-32GB", 0, 130, 0, 16.4},
    // NVIDIA T4 data sheet (2019).
    {"Tesla T4", 0, 65, 0, 8.1},
    // NVIDIA A100 data sheet (2021). The A800 differs in NVLink only.
    {"A100-SXM4-40GB", 312, 312, 156, 19.5},
    {"A100-SXM4-80GB", 312, 312, 156, 19.5},
    {"A100-PCIE-40GB", 312, 312, 156, 19.5},
    {"A100 80GB PCIe", 312, 312, 156, 19.5},
    {"A800-SXM4-80GB", 312, 312, 156, 19.5},
    {"A800 80GB PCIe", 312, 312, 156, 19.5},
    // NVIDIA A10, A30 and A40 data sheets (2021).
    {"A10", 125, 125, 62.5, 31.2},
    {"A30", 165, 165, 82, 10.3},
    {"A40", 149.7, 149.7, 74.8, 37.4},
    // NVIDIA Ampere GA102 whitepaper, appendix A: with fp32 accumulation.
    {"GeForce RTX 3090", 71, 71, 35.6, 35.6},
    // NVIDIA Ada GPU architecture whitepaper, appendix A: with fp32 accumulation.
    {"GeForce RTX 4090", 165.2, 165.2, 82.6, 82.6},
    // NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A: with fp32 accumulation.
    {"GeForce RTX 5090", 209.5, 209.5, 104.8, 104.8},
    // NVIDIA L4 data sheet (2023): 242 and 120 sparse.
    {"L4", 121, 121, 60, 30.3},
    // NVIDIA L40 data sheet (2023).
    {"L40", 181.05, 181.05, 90.5, 90.5},
    // NVIDIA L40S data sheet (2023).
    {"L40S", 362.05, 362.05, 183, 91.6},
    // NVIDIA H100 data sheet (2024): sparse 1979 (SXM), 1513 (PCIe), 1671 (NVL).
    {"H100 80GB HBM3", 989.5, 989.5, 494.5, 67},
    {"H100 PCIe", 756.5, 756.5, 378, 51},
    {"H100 NVL", 835.5, 835.5, 417.5, 60},
    // NVIDIA H800 data sheet: as the H100, with less NVLink and fp64.
    {"H800", 989.5, 989.5, 494.5, 67},
    {"H800 PCIe", 756.5, 756.5, 378, 51},
    // NVIDIA H20 data sheet (2023).
    {"H20", 148, 148, 74, 44},
    // NVIDIA H200 data sheet (2024): sparse 1979 (SXM), 1671 (NVL).
    {"H200", 989.5, 989.5, 494.5, 67},
    {"H200 NVL", 835.5, 835.5, 417.5, 60},
    // NVIDIA HGX B200 and HGX B300 data sheets (2025), an eighth of the board: 36 PFLOPS sparse.
    {"B200", 2250, 2250, 1125, 75},
    {"B300 SXM6 AC", 2250, 2250, 1125, 75},
    // NVIDIA GB200 NVL72 and GB300 NVL72 data sheets, a 72nd of the rack: 360 PFLOPS sparse.
    {"GB200", 2500, 2500, 1250, 80},
    {"GB300", 2500, 2500, 1250, 80},
    // AMD CDNA 2 whitepaper: 383 for the module, which shows as two devices. fp32: matrix rate.
    {"AMD Instinct MI250X", 191.5, 191.5, 0, 47.9},
    // AMD CDNA 3 whitepaper and data sheets of MI300A, MI300X, MI325X. fp32: matrix rate.
    {"AMD Instinct MI300A", 980.6, 980.6, 490.3, 122.6},
    {"AMD Instinct MI300X", 1307.4, 1307.4, 653.7, 163.4},
    {"AMD Instinct MI325X", 1307.4, 1307.4, 653.7, 163.4},
};

std::string_view trimmed(std::string_view name) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::size_t first = name.find_first_not_of(kBlanks);
  return first == std::string_view::npos
             ? ""
             : name.substr(first, name.find_last_not_of(kBlanks) - first + 1);
}

double rate(const DevicePeak& peak, PeakType type) {
  switch (type) {
    case PeakType::kBf16:
      return peak.bf16;
    case PeakType::kFp16:
      return peak.fp16;
    case PeakType::kTf32:
      return peak.tf32;
    case PeakType::kFp32:
      return peak.fp32;
  }
  return 0;
}

}  // namespace

std::span<const DevicePeak> device_peaks() { return kPeaks; }

std::optional<double> peak_flops_per_second(std::string_view device_name, PeakType type) {
  std::string_view name = trimmed(device_name);
  if (name.starts_with(kVendor)) {
    name.remove_prefix(kVendor.size());
  }
  for (const DevicePeak& peak : kPeaks) {
    if (peak.name == name) {
      double tera = rate(peak, type);
      return tera > 0 ? std::optional(tera * kTera) : std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace ljtrain::ljperf
