#include <fmt/ranges.h>

#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "catalogue/devices.h"
#include "catalogue/lookup.h"

namespace ljtrain::ljperf {
namespace {

// From the data sheets that devices.cc names. What two sheets of the same product state differently
// (B300, GB300) is left out.
constexpr DeviceMemory kMemories[] = {
    {"Tesla V100-SXM2-16GB", 16, 900},
    {"Tesla V100-SXM2-32GB", 32, 900},
    {"Tesla V100-PCIE-16GB", 16, 900},
    {"Tesla V100-PCIE-32GB", 32, 900},
    {"Tesla V100S-PCIE-32GB", 32, 1134},
    {"Tesla T4", 16, 320},
    {"A100-SXM4-40GB", 40, 1555},
    {"A100-SXM4-80GB", 80, 2039},
    {"A100-PCIE-40GB", 40, 1555},
    {"A100 80GB PCIe", 80, 1935},
    {"A800-SXM4-80GB", 80, 2039},
    {"A800 80GB PCIe", 80, 1935},
    {"A10", 24, 600},
    {"A30", 24, 933},
    {"A40", 48, 696},
    {"GeForce RTX 3090", 24, 936},
    {"GeForce RTX 4090", 24, 1008},
    {"GeForce RTX 5090", 32, 1792},
    {"L4", 24, 300},
    {"L40", 48, 864},
    {"L40S", 48, 864},
    {"H100 80GB HBM3", 80, 3350},
    {"H100 PCIe", 80, 2000},
    {"H100 NVL", 94, 3900},
    {"H800", 80, 3350},
    {"H800 PCIe", 80, 2000},
    {"H20", 96, 4000},
    {"H200", 141, 4800},
    {"H200 NVL", 141, 4800},
    {"B200", 180, 8000},
    {"B300 SXM6 AC", 0, 8000},
    {"GB200", 186, 8000},
    {"GB300", 0, 8000},
    {"AMD Instinct MI250X", 64, 1638},
    {"AMD Instinct MI300A", 128, 5300},
    {"AMD Instinct MI300X", 192, 5300},
    {"AMD Instinct MI325X", 256, 6000},
};

// What people write for a device that comes in several forms.
constexpr std::pair<std::string_view, std::string_view> kShortNames[] = {
    {"v100", "Tesla V100-SXM2-32GB"}, {"a100", "A100-SXM4-80GB"}, {"a10080gb", "A100-SXM4-80GB"},
    {"a10040gb", "A100-SXM4-40GB"},   {"a800", "A800-SXM4-80GB"}, {"h100", "H100 80GB HBM3"},
    {"b300", "B300 SXM6 AC"},
};

// Lower case, letters and digits only, without maker and brand.
std::string plain(std::string_view name) {
  std::string letters;
  for (char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  for (std::string_view brand : {"nvidia", "geforce", "tesla", "amd", "instinct"}) {
    if (letters.starts_with(brand)) {
      letters.erase(0, brand.size());
    }
  }
  return letters;
}

}  // namespace

const DeviceMemory& find_device(std::string_view name) {
  std::string wanted = plain(name);
  for (const auto& [shorthand, full] : kShortNames) {
    if (wanted == shorthand) {
      wanted = plain(full);
    }
  }
  std::vector<std::string> names;
  for (const DeviceMemory& device : kMemories) {
    names.push_back(plain(device.name));
    if (names.back() == wanted) {
      return device;
    }
  }
  std::vector<std::string_view> views(names.begin(), names.end());
  for (const auto& [shorthand, full] : kShortNames) {
    views.push_back(shorthand);
  }
  std::vector<std::string_view> near = nearest_names(wanted, views);
  throw base::user_error("no device `{}` is known: {}", name,
                         near.empty() ? fmt::format("there are {}", fmt::join(views, ", "))
                                      : fmt::format("did you mean {}?", fmt::join(near, ", ")));
}

}  // namespace ljtrain::ljperf
