#include "catalogue/devices.h"

namespace ljtrain::ljperf {
namespace {

constexpr double kTera = 1e12;
constexpr std::string_view kVendor = "NVIDIA ";

// Each row or group names its source; where a data
// sheet gives only the sparse rate, half of it stands here.
constexpr DevicePeak kPeaks[] = {
    // NVIDIA Tesla V100 data sheet (2020). No bf16, no tf32.
    {.name = "Tesla V100-SXM2-16GB", .fp16 = 125, .fp32 = 15.7},
    {.name = "Tesla V100-SXM2-32GB", .fp16 = 125, .fp32 = 15.7},
    {.name = "Tesla V100-PCIE-16GB", .fp16 = 112, .fp32 = 14},
    {.name = "Tesla V100-PCIE-32GB", .fp16 = 112, .fp32 = 14},
    {.name = "Tesla V100S-PCIE-32GB", .fp16 = 130, .fp32 = 16.4},
    // NVIDIA T4 data sheet (2019).
    {.name = "Tesla T4", .fp16 = 65, .fp32 = 8.1},
    // NVIDIA A100 data sheet (2021). The A800 differs in NVLink only.
    {.name = "A100-SXM4-40GB", .bf16 = 312, .fp16 = 312, .tf32 = 156, .fp32 = 19.5},
    {.name = "A100-SXM4-80GB", .bf16 = 312, .fp16 = 312, .tf32 = 156, .fp32 = 19.5},
    {.name = "A100-PCIE-40GB", .bf16 = 312, .fp16 = 312, .tf32 = 156, .fp32 = 19.5},
    {.name = "A100 80GB PCIe", .bf16 = 312, .fp16 = 312, .tf32 = 156, .fp32 = 19.5},
    {.name = "A800-SXM4-80GB", .bf16 = 312, .fp16 = 312, .tf32 = 156, .fp32 = 19.5},
    {.name = "A800 80GB PCIe", .bf16 = 312, .fp16 = 312, .tf32 = 156, .fp32 = 19.5},
    // NVIDIA A10, A30 and A40 data sheets (2021).
    {.name = "A10", .bf16 = 125, .fp16 = 125, .tf32 = 62.5, .fp32 = 31.2},
    {.name = "A30", .bf16 = 165, .fp16 = 165, .tf32 = 82, .fp32 = 10.3},
    {.name = "A40", .bf16 = 149.7, .fp16 = 149.7, .tf32 = 74.8, .fp32 = 37.4},
    // NVIDIA Ampere GA102 whitepaper, appendix A: with fp32 accumulation.
    {.name = "GeForce RTX 3090", .bf16 = 71, .fp16 = 71, .tf32 = 35.6, .fp32 = 35.6},
    // NVIDIA Ada GPU architecture whitepaper, appendix A: with fp32 accumulation.
    {.name = "GeForce RTX 4090", .bf16 = 165.2, .fp16 = 165.2, .tf32 = 82.6, .fp32 = 82.6},
    // NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A: with fp32 accumulation.
    {.name = "GeForce RTX 5090", .bf16 = 209.5, .fp16 = 209.5, .tf32 = 104.8, .fp32 = 104.8},
    // NVIDIA L4 data sheet (2023): 242 and 120 sparse.
    {.name = "L4", .bf16 = 121, .fp16 = 121, .tf32 = 60, .fp32 = 30.3},
    // NVIDIA L40 data sheet (2023).
    {.name = "L40", .bf16 = 181.05, .fp16 = 181.05, .tf32 = 90.5, .fp32 = 90.5},
    // NVIDIA L40S data sheet (2023).
    {.name = "L40S", .bf16 = 362.05, .fp16 = 362.05, .tf32 = 183, .fp32 = 91.6},
    // NVIDIA H100 data sheet (2024): sparse 1979 (SXM), 1513 (PCIe), 1671 (NVL).
    {.name = "H100 80GB HBM3", .bf16 = 989.5, .fp16 = 989.5, .tf32 = 494.5, .fp32 = 67},
    {.name = "H100 PCIe", .bf16 = 756.5, .fp16 = 756.5, .tf32 = 378, .fp32 = 51},
    {.name = "H100 NVL", .bf16 = 835.5, .fp16 = 835.5, .tf32 = 417.5, .fp32 = 60},
    // NVIDIA H800 data sheet: as the H100, with less NVLink and fp64.
    {.name = "H800", .bf16 = 989.5, .fp16 = 989.5, .tf32 = 494.5, .fp32 = 67},
    {.name = "H800 PCIe", .bf16 = 756.5, .fp16 = 756.5, .tf32 = 378, .fp32 = 51},
    // NVIDIA H20 data sheet (2023).
    {.name = "H20", .bf16 = 148, .fp16 = 148, .tf32 = 74, .fp32 = 44},
    // NVIDIA H200 data sheet (2024): sparse 1979 (SXM), 1671 (NVL).
    {.name = "H200", .bf16 = 989.5, .fp16 = 989.5, .tf32 = 494.5, .fp32 = 67},
    {.name = "H200 NVL", .bf16 = 835.5, .fp16 = 835.5, .tf32 = 417.5, .fp32 = 60},
    // NVIDIA HGX B200 and HGX B300 data sheets (2025), an eighth of the board: 36 PFLOPS sparse.
    {.name = "B200", .bf16 = 2250, .fp16 = 2250, .tf32 = 1125, .fp32 = 75},
    {.name = "B300 SXM6 AC", .bf16 = 2250, .fp16 = 2250, .tf32 = 1125, .fp32 = 75},
    // NVIDIA GB200 NVL72 and GB300 NVL72 data sheets, a 72nd of the rack: 360 PFLOPS sparse.
    {.name = "GB200", .bf16 = 2500, .fp16 = 2500, .tf32 = 1250, .fp32 = 80},
    {.name = "GB300", .bf16 = 2500, .fp16 = 2500, .tf32 = 1250, .fp32 = 80},
    // AMD CDNA 2 whitepaper: 383 for the module, which shows as two devices. fp32: matrix rate.
    {.name = "AMD Instinct MI250X", .bf16 = 191.5, .fp16 = 191.5, .fp32 = 47.9},
    // AMD CDNA 3 whitepaper and data sheets of MI300A, MI300X, MI325X. fp32: matrix rate.
    {.name = "AMD Instinct MI300A", .bf16 = 980.6, .fp16 = 980.6, .tf32 = 490.3, .fp32 = 122.6},
    {.name = "AMD Instinct MI300X", .bf16 = 1307.4, .fp16 = 1307.4, .tf32 = 653.7, .fp32 = 163.4},
    {.name = "AMD Instinct MI325X", .bf16 = 1307.4, .fp16 = 1307.4, .tf32 = 653.7, .fp32 = 163.4},
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
