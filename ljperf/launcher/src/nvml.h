// The GPUs that NVIDIA's management library (NVML) lists, without linking it.
#pragma once

#include <string>
#include <vector>

#include "launcher/hardware.h"

namespace ljtrain::ljperf {

struct NvmlInventory {
  std::vector<Gpu> gpus;
  std::string note;
};

// Loads libnvidia-ml.so.1, asks for every device's name and memory, unloads it.
// CUDA_VISIBLE_DEVICES is respected: only as many devices as it names are reported, in its order,
// when it holds indices; an empty value hides all.
NvmlInventory read_nvml();

}  // namespace ljtrain::ljperf
