#include "doctor/gpu_report.h"

#include <array>

#include "launcher/nvml_library.h"

namespace ljtrain::ljperf {
namespace {

// From NVML's API reference.
constexpr int kSuccess = 0;
constexpr int kGpuIsLost = 15;
constexpr int kUncorrected = 1;  // nvmlMemoryErrorType_t
constexpr int kVolatile = 0;     // nvmlEccCounterType_t
constexpr int kProhibited = 2;   // nvmlComputeMode_t
constexpr int kP2pRead = 0;      // nvmlGpuP2PCapsIndex_t
constexpr unsigned kMostLinks = 18;
constexpr unsigned kMostGpus = 64;
using Device = void*;

// nvmlPciInfo_t.
struct PciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  std::array<char, 32> bus_id;
};

class Reader {
 public:
  explicit Reader(const NvmlLibrary& library) : library_(library) {}

  // The value that `function(device, &value)` gives, if it succeeds.
  template <typename Value>
  std::optional<Value> get(const char* function, Device device) const {
    auto* get_value = library_.find<int(Device, Value*)>(function);
    Value value{};
    return get_value != nullptr && get_value(device, &value) == kSuccess ? std::optional(value)
                                                                         : std::nullopt;
  }

  std::optional<bool> flag(const char* function, Device device) const {
    std::optional<int> value = get<int>(function, device);
    return value.has_value() ? std::optional(*value != 0) : std::nullopt;
  }

  // For functions that answer with a mode and a pending one.
  std::optional<bool> mode(const char* function, Device device) const {
    auto* get_mode = library_.find<int(Device, int*, int*)>(function);
    int now = 0;
    int pending = 0;
    return get_mode != nullptr && get_mode(device, &now, &pending) == kSuccess
               ? std::optional(now != 0)
               : std::nullopt;
  }

  void read_errors(Device device, GpuHealth& gpu) const {
    auto* ecc =
        library_.find<int(Device, int, int, unsigned long long*)>("nvmlDeviceGetTotalEccErrors");
    unsigned long long count = 0;
    if (ecc != nullptr && ecc(device, kUncorrected, kVolatile, &count) == kSuccess) {
      gpu.uncorrected_errors = count;
    }
    auto* rows = library_.find<int(Device, unsigned*, unsigned*, unsigned*, unsigned*)>(
        "nvmlDeviceGetRemappedRows");
    unsigned corrected = 0;
    unsigned uncorrected = 0;
    unsigned pending = 0;
    unsigned failed = 0;
    if (rows != nullptr && rows(device, &corrected, &uncorrected, &pending, &failed) == kSuccess) {
      gpu.remap_pending = pending != 0;
      gpu.remap_failed = failed != 0;
    }
  }

  void read_links(Device device, GpuHealth& gpu) const {
    auto* state = library_.find<int(Device, unsigned, int*)>("nvmlDeviceGetNvLinkState");
    for (unsigned link = 0; state != nullptr && link < kMostLinks; ++link) {
      int active = 0;
      if (state(device, link, &active) == kSuccess) {
        ++(active != 0 ? gpu.links_active : gpu.links_down);
      }
    }
  }

  GpuHealth read(Device device) const {
    GpuHealth gpu;
    std::array<char, 96> text{};
    auto* name = library_.find<int(Device, char*, unsigned)>("nvmlDeviceGetName");
    if (name != nullptr && name(device, text.data(), text.size()) == kSuccess) {
      gpu.name = text.data();
    }
    if (std::optional<PciInfo> pci = get<PciInfo>("nvmlDeviceGetPciInfo_v3", device)) {
      pci->bus_id.back() = '\0';
      gpu.bus_id = pci->bus_id.data();
    }
    gpu.brand = get<int>("nvmlDeviceGetBrand", device).value_or(0);
    gpu.ecc = mode("nvmlDeviceGetEccMode", device);
    read_errors(device, gpu);
    gpu.throttle_reasons =
        get<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", device);
    gpu.persistence = flag("nvmlDeviceGetPersistenceMode", device);
    gpu.mig = mode("nvmlDeviceGetMigMode", device);
    if (std::optional<int> compute = get<int>("nvmlDeviceGetComputeMode", device)) {
      gpu.prohibited = *compute == kProhibited;
    }
    gpu.pcie_width = get<int>("nvmlDeviceGetCurrPcieLinkWidth", device);
    gpu.pcie_width_most = get<int>("nvmlDeviceGetMaxPcieLinkWidth", device);
    read_links(device, gpu);
    return gpu;
  }

 private:
  const NvmlLibrary& library_;
};

void read_peers(const NvmlLibrary& library, const std::vector<Device>& devices, GpuReport& report) {
  auto* status = library.find<int(Device, Device, int, int*)>("nvmlDeviceGetP2PStatus");
  for (std::size_t i = 0; status != nullptr && i < devices.size(); ++i) {
    for (std::size_t j = 0; j < devices.size(); ++j) {
      int answer = 0;
      if (i != j && devices[i] != nullptr && devices[j] != nullptr &&
          status(devices[i], devices[j], kP2pRead, &answer) == kSuccess && answer != 0) {
        report.gpus[i].peers_without_access.push_back(static_cast<int>(j));
      }
    }
  }
}

}  // namespace

GpuReport read_gpu_report() {
  GpuReport report;
  NvmlLibrary library;
  report.library = library.loaded();
  report.error = library.error();
  report.why = library.why();
  if (!library.started()) {
    return report;
  }
  auto* driver = library.find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  std::array<char, 80> version{};
  if (driver != nullptr && driver(version.data(), version.size()) == kSuccess) {
    report.driver = version.data();
  }
  auto* count = library.find<int(unsigned*)>("nvmlDeviceGetCount_v2");
  auto* handle = library.find<int(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
  unsigned gpus = 0;
  if (count == nullptr || handle == nullptr || count(&gpus) != kSuccess) {
    report.why = "NVML does not list the GPUs";
    return report;
  }
  std::vector<Device> devices;
  for (unsigned i = 0; i < gpus && i < kMostGpus; ++i) {
    Device device = nullptr;
    int code = handle(i, &device);
    if (code == kSuccess) {
      report.gpus.push_back(Reader(library).read(device));
    } else {
      report.gpus.emplace_back();
      report.gpus.back().lost = code == kGpuIsLost;
    }
    devices.push_back(code == kSuccess ? device : nullptr);
  }
  read_peers(library, devices, report);
  return report;
}

}  // namespace ljtrain::ljperf
