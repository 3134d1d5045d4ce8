#include "launcher/nvml_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace ljtrain::ljperf {

NvmlLibrary::NvmlLibrary() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    why_ = "no NVIDIA driver library (libnvidia-ml.so.1)";
    return;
  }
  auto* init = find<int()>("nvmlInit_v2");
  if (init == nullptr || symbol("nvmlShutdown") == nullptr) {
    why_ = "libnvidia-ml.so.1 lacks functions of NVML";
    return;
  }
  error_ = init();
  started_ = error_ == 0;
  if (!started_) {
    why_ = fmt::format("NVML does not start (error {})", error_);
  }
}

NvmlLibrary::~NvmlLibrary() {
  if (started_) {
    find<int()>("nvmlShutdown")();
  }
  if (library_ != nullptr) {
    ::dlclose(library_);
  }
}

void* NvmlLibrary::symbol(const char* name) const {
  return library_ == nullptr ? nullptr : ::dlsym(library_, name);
}

}  // namespace ljtrain::ljperf
