// The driver's two halves and the CUDA in use, read from files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/machine.h"
#include "image/driver_rules.h"
#include "image/version.h"

namespace ljtrain::ljperf {

// /dev/nvidia0, /dev/nvidia1, ...: "nvidia0", ...
std::vector<std::string> gpu_nodes(const Machine& machine);
// NVIDIA GPUs on the PCI bus: "0000:17:00.0", ...
std::vector<std::string> gpus_on_bus(const Machine& machine);
std::optional<image::Version> kernel_driver(const Machine& machine);

struct Libcuda {
  std::string path;
  image::Version version;
  bool from_compat_package = false;
};
// The libcuda.so.1 that the loader takes.
std::optional<Libcuda> find_libcuda(const Machine& machine);

struct CudaInUse {
  image::Version version;
  std::string where;  // "PyTorch", "the toolkit", "release 25.07"
};
std::optional<CudaInUse> cuda_in_use(const Machine& machine);
std::optional<image::Version> cuda_toolkit(const Machine& machine);

// Of the weakest GPU here: forward compatibility needs all of them to be able to.
image::GpuClass gpu_class_here(const Machine& machine);

}  // namespace ljtrain::ljperf
