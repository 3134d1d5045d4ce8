// Which NVIDIA drivers run which CUDA, by NVIDIA's published rules (facts/cuda_driver.csv names the
// pages). A driver runs
//   every CUDA up to the one it was made with,
//   by minor version compatibility: any CUDA of a major version from that major's first driver on,
//   by forward compatibility: newer CUDA through the libcuda of a cuda-compat package, on
//   data-center GPUs only, and only from the driver branches that NVIDIA lists for the package.
// What a release asks beyond that is its policy: missing it is worth a warning, no failure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "image/release.h"
#include "image/version.h"

namespace ljtrain::image {

// One row of facts/cuda_driver.csv.
struct DriverRow {
  Version cuda;                   // 12.8
  std::string update;             // GA, U1, ...
  Version toolkit_driver;         // that the toolkit ships with
  Version minor_minimum;          // lowest driver for any CUDA of the major version
  std::string forward_package;    // cuda-compat-12-8
  std::vector<int> forward_from;  // branches; empty: none, or not stated
};
const std::vector<DriverRow>& driver_table();

enum class GpuClass { kDataCenter, kWorkstation, kConsumer, kUnknown };
// From NVML's brand (nvmlBrandType_t) and, where that says nothing, the name.
GpuClass gpu_class(int brand, std::string_view name);

struct DriverQuestion {
  Version driver;  // of the kernel module
  Version cuda;    // that programs were built with
  GpuClass gpu = GpuClass::kUnknown;
  bool forward_compatibility = false;  // the libcuda of a cuda-compat package is in use
};

enum class Verdict { kOk, kWarning, kFailure };

struct DriverAnswer {
  Verdict verdict = Verdict::kOk;
  std::string rule;      // toolkit, minor, forward, policy, none
  std::string why;       // one sentence
  std::string expected;  // of the driver
  std::string fix;       // empty when ok
};

// By NVIDIA's rules alone.
DriverAnswer judge_driver(const DriverQuestion& question);
// The same, and what the release asks for.
DriverAnswer judge_driver(const DriverQuestion& question, const DriverPolicy& policy);

// How the two halves of a driver fit: the kernel module and the libcuda that programs load. Their
// disagreement is CUDA error 803, forward compatibility where it does not exist 804.
struct DriverHalves {
  Version kernel;
  Version libcuda;
  bool from_compat_package = false;
  GpuClass gpu = GpuClass::kUnknown;
};
DriverAnswer judge_halves(const DriverHalves& halves);

}  // namespace ljtrain::image
