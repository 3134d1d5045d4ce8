#include "nvml.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <utility>

#include "launcher/nvml_library.h"

namespace ljtrain::ljperf {
namespace {

// From NVML's API reference: nvmlReturn_t, nvmlMemory_t and the buffer sizes it documents.
constexpr int kNvmlSuccess = 0;
constexpr unsigned kNameBufferSize = 96;
constexpr unsigned kDriverBufferSize = 80;
using Device = void*;
struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// The indices that CUDA_VISIBLE_DEVICES selects out of `count`; nullopt when it is unset or names
// devices by UUID.
std::optional<std::vector<unsigned>> visible_devices(unsigned count) {
  const char* value = std::getenv("CUDA_VISIBLE_DEVICES");
  if (value == nullptr) {
    return std::nullopt;
  }
  std::vector<unsigned> indices;
  std::istringstream list(value);
  for (std::string item; std::getline(list, item, ',');) {
    char* end = nullptr;
    long index = std::strtol(item.c_str(), &end, 10);
    if (end == item.c_str()) {
      return std::nullopt;
    }
    // CUDA stops at the first index that does not exist.
    if (index < 0 || std::cmp_greater_equal(index, count)) {
      break;
    }
    indices.push_back(static_cast<unsigned>(index));
  }
  return indices;
}

}  // namespace

NvmlInventory read_nvml() {
  NvmlInventory inventory;
  NvmlLibrary library;
  if (!library.started()) {
    inventory.note = library.why();
    return inventory;
  }
  auto* driver = library.find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  auto* device_count = library.find<int(unsigned*)>("nvmlDeviceGetCount_v2");
  auto* handle = library.find<int(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
  auto* name = library.find<int(Device, char*, unsigned)>("nvmlDeviceGetName");
  auto* memory = library.find<int(Device, Memory*)>("nvmlDeviceGetMemoryInfo");
  if (device_count == nullptr || handle == nullptr || name == nullptr || memory == nullptr) {
    inventory.note = "libnvidia-ml.so.1 lacks functions of NVML";
    return inventory;
  }
  std::array<char, kDriverBufferSize> version{};
  if (driver != nullptr && driver(version.data(), version.size()) == kNvmlSuccess) {
    inventory.note = fmt::format("NVIDIA driver {}", version.data());
  }
  unsigned count = 0;
  if (device_count(&count) != kNvmlSuccess) {
    count = 0;
  }
  std::optional<std::vector<unsigned>> visible = visible_devices(count);
  std::size_t wanted = visible.has_value() ? visible->size() : count;
  for (std::size_t i = 0; i < wanted; ++i) {
    unsigned index = visible.has_value() ? (*visible)[i] : static_cast<unsigned>(i);
    Device device = nullptr;
    std::array<char, kNameBufferSize> text{};
    Memory bytes{};
    if (handle(index, &device) == kNvmlSuccess &&
        name(device, text.data(), text.size()) == kNvmlSuccess &&
        memory(device, &bytes) == kNvmlSuccess) {
      inventory.gpus.push_back({text.data(), bytes.total});
    }
  }
  return inventory;
}

}  // namespace ljtrain::ljperf
