// The state of the GPUs as NVML tells it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ljtrain::ljperf {

// nullopt: this GPU or library does not say.
struct GpuHealth {
  std::string name;
  std::string bus_id;  // "00000000:17:00.0"
  int brand = 0;       // nvmlBrandType_t
  bool lost = false;   // fallen off the bus
  std::optional<bool> ecc;
  std::optional<std::uint64_t> uncorrected_errors;  // since the driver was loaded
  std::optional<bool> remap_pending;                // rows: effective after a reset
  std::optional<bool> remap_failed;
  std::optional<std::uint64_t> throttle_reasons;  // nvmlClocksEventReasons
  std::optional<bool> persistence;
  std::optional<bool> mig;
  std::optional<bool> prohibited;  // compute mode
  std::optional<int> pcie_width;
  std::optional<int> pcie_width_most;
  int links_active = 0;  // NVLink
  int links_down = 0;
  std::vector<int> peers_without_access;  // indices of the GPUs it cannot reach directly
};

struct GpuReport {
  bool library = false;  // libnvidia-ml.so.1 is there
  int error = 0;         // nvmlReturn_t of starting it
  std::string why;       // why there is nothing
  std::string driver;    // version
  std::vector<GpuHealth> gpus;
};

// Asks NVML. Never throws for what is missing.
GpuReport read_gpu_report();

}  // namespace ljtrain::ljperf
