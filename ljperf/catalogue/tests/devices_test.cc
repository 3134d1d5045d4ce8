#include "catalogue/devices.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

TEST(Devices, DensePeaks) {
  auto bf16 = [](std::string_view name) { return peak_flops_per_second(name, PeakType::kBf16); };
  EXPECT_EQ(bf16("NVIDIA H100 80GB HBM3"), 989.5e12);  // not the sparse 1979
  EXPECT_EQ(bf16("NVIDIA H100 PCIe"), 756.5e12);
  EXPECT_EQ(bf16("NVIDIA H100 NVL"), 835.5e12);
  EXPECT_EQ(bf16("NVIDIA H200"), 989.5e12);
  EXPECT_EQ(bf16("NVIDIA A100-SXM4-40GB"), 312e12);
  EXPECT_EQ(bf16("A100-SXM4-40GB"), 312e12);  // drivers before 470
  EXPECT_EQ(bf16("NVIDIA B200"), 2250e12);
  EXPECT_EQ(bf16("AMD Instinct MI300X"), 1307.4e12);
  EXPECT_EQ(bf16("NVIDIA L4\n"), 121e12);
  EXPECT_EQ(peak_flops_per_second("Tesla V100-SXM2-16GB", PeakType::kFp16), 125e12);
  EXPECT_EQ(peak_flops_per_second("NVIDIA A100-SXM4-80GB", PeakType::kTf32), 156e12);
  EXPECT_EQ(peak_flops_per_second("NVIDIA A100-SXM4-80GB", PeakType::kFp32), 19.5e12);
}

TEST(Devices, TypesThatADeviceLacks) {
  EXPECT_EQ(peak_flops_per_second("Tesla V100-SXM2-16GB", PeakType::kBf16), std::nullopt);
  EXPECT_EQ(peak_flops_per_second("Tesla T4", PeakType::kTf32), std::nullopt);
}

// Each of these holds, or is held in, a name of the table; some differ from it by a factor of two.
TEST(Devices, NearMissesHaveNoPeak) {
  for (const char* name : {"",
                           " ",
                           "NVIDIA",
                           "NVIDIA ",
                           "H100",
                           "NVIDIA H100",
                           "NVIDIA H100 80GB",
                           "NVIDIA H100 80GB HBM2e",
                           "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
                           "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
                           "NVIDIA H200 SXM",
                           "NVIDIA H20 NVL",
                           "NVIDIA H2",
                           "NVIDIA H2000",
                           "NVIDIA GH200 480GB",
                           "NVIDIA A10G",
                           "NVIDIA A10M",
                           "NVIDIA A100",
                           "NVIDIA A1000",
                           "NVIDIA A16",
                           "NVIDIA A2",
                           "NVIDIA L40G",
                           "NVIDIA L4 Tensor Core",
                           "NVIDIA L20",
                           "NVIDIA B20",
                           "NVIDIA B2000",
                           "NVIDIA GB20",
                           "NVIDIA B300",
                           "GRID A100-40C",
                           "NVIDIA GeForce RTX 4090 D",
                           "NVIDIA GeForce RTX 4090 Laptop GPU",
                           "NVIDIA GeForce RTX 3090 Ti",
                           "NVIDIA GeForce RTX 5090 D",
                           "nvidia h200",
                           "NVIDIA  H200",
                           "NVIDIA NVIDIA H200",
                           "Tesla V100",
                           "NVIDIA T4G",
                           "AMD Instinct MI250",
                           "AMD Instinct MI250X / MI250",
                           "AMD Instinct MI300",
                           "AMD Instinct MI325",
                           "Instinct MI300X"}) {
    for (PeakType type : {PeakType::kBf16, PeakType::kFp16, PeakType::kTf32, PeakType::kFp32}) {
      EXPECT_EQ(peak_flops_per_second(name, type), std::nullopt) << name;
    }
  }
}

TEST(Devices, TableIsConsistent) {
  std::set<std::string_view> names;
  for (const DevicePeak& peak : device_peaks()) {
    EXPECT_TRUE(names.insert(peak.name).second) << peak.name;
    EXPECT_FALSE(peak.name.starts_with("NVIDIA ")) << peak.name;
    EXPECT_GT(peak.fp16, 0) << peak.name;
    EXPECT_GT(peak.fp32, 0) << peak.name;
    EXPECT_TRUE(peak.bf16 == 0 || peak.bf16 == peak.fp16) << peak.name;
    EXPECT_LE(peak.tf32, peak.fp16) << peak.name;
    EXPECT_EQ(
        peak_flops_per_second(std::string("NVIDIA ") + std::string(peak.name), PeakType::kFp16),
        peak.fp16 * 1e12);
  }
}

TEST(Devices, MemoryByTheNameThatPeopleWrite) {
  EXPECT_EQ(find_device("h100").name, "H100 80GB HBM3");
  EXPECT_EQ(find_device("NVIDIA H100 PCIe").memory_gb, 80);
  EXPECT_EQ(find_device("rtx 4090").bandwidth, 1008);
  EXPECT_EQ(find_device("a100-40gb").memory_gb, 40);
  EXPECT_EQ(find_device("A100-SXM4-80GB").memory_gb, 80);
  EXPECT_EQ(find_device("mi300x").memory_gb, 192);
  EXPECT_THROW(find_device(""), base::UserError);
  try {
    find_device("h10");
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean"), std::string::npos);
  }
}

TEST(Devices, EveryPeakHasItsMemory) {
  for (const DevicePeak& peak : device_peaks()) {
    const DeviceMemory& memory = find_device(peak.name);
    EXPECT_EQ(memory.name, peak.name);
    EXPECT_GT(memory.bandwidth, 100);
  }
}

}  // namespace
}  // namespace ljtrain::ljperf
