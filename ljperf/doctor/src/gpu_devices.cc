// Devices before drivers: "driver insufficient" often only means that no device was passed in.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/text.h"
#include "base/unique_fd.h"
#include "check.h"
#include "drivers.h"
#include "python_packages.h"

namespace ljtrain::ljperf {
namespace {

// Somebody counts on GPUs here: the container was started for them, or PyTorch was built for them.
bool gpus_are_wanted(const Machine& machine) {
  std::string visible = machine.variable("NVIDIA_VISIBLE_DEVICES");
  std::optional<TorchBuild> torch = read_torch_build(machine);
  return (!visible.empty() && visible != "void" && visible != "none") ||
         (torch.has_value() && torch->cuda.has_value());
}

Finding without_nodes(const Machine& machine, std::size_t on_bus) {
  bool module_loaded = machine.exists("/proc/driver/nvidia/version");
  if (machine.exists("/dev/dxg")) {
    return ok("GPUs of the Windows host (/dev/dxg)");
  }
  if (module_loaded) {
    std::string found = "the host's NVIDIA driver is loaded, but there is no /dev/nvidia0 here";
    return gpus_are_wanted(machine)
               ? fail(found, "one /dev/nvidiaN for each GPU",
                      "pass the GPUs in: docker run --gpus all; in Kubernetes a limit "
                      "nvidia.com/gpu; in Slurm --gres=gpu:N")
               : skip("the host has GPUs, none was passed in, and nothing here asks for one");
  }
  if (on_bus == 0) {
    return skip("no NVIDIA GPU on this machine");
  }
  std::string device = "/sys/bus/pci/devices/" + gpus_on_bus(machine).front() + "/driver";
  std::string bound = machine.follow(device);
  bound = bound == device ? "" : bound.substr(bound.rfind('/') + 1);
  if (bound == "vfio-pci") {
    return skip("the GPUs are passed on to a virtual machine (vfio-pci)");
  }
  return fail(fmt::format("{} NVIDIA GPU{} on the PCI bus, no NVIDIA kernel module{}", on_bus,
                          on_bus == 1 ? "" : "s",
                          bound.empty() ? "" : fmt::format(" (bound to {})", bound)),
              "the module nvidia loaded",
              bound == "nouveau"
                  ? "blacklist nouveau, install NVIDIA's driver on the host, reboot"
                  : "install NVIDIA's driver on the host, or load it: modprobe nvidia");
}

}  // namespace

Finding check_gpu_devices(const Machine& machine) {
  std::vector<std::string> nodes = gpu_nodes(machine);
  if (nodes.empty()) {
    return without_nodes(machine, gpus_on_bus(machine).size());
  }
  for (const char* needed : {"nvidiactl", "nvidia-uvm"}) {
    if (!machine.exists(std::string("/dev/") + needed)) {
      return fail(fmt::format("{} GPUs, but no /dev/{}", nodes.size(), needed),
                  "/dev/nvidiactl and /dev/nvidia-uvm beside the GPUs",
                  std::string_view(needed) == "nvidia-uvm"
                      ? "on the host: nvidia-modprobe -u -c 0; in a container pass it in, too"
                      : "pass it into the container, too, or on the host: nvidia-modprobe");
    }
  }
  std::vector<std::string> closed;
  std::string reason;
  for (const std::string& node : nodes) {
    base::UniqueFd fd(::open(machine.at("/dev/" + node).c_str(), O_RDWR | O_CLOEXEC));
    if (!fd) {
      reason = std::strerror(errno);
      closed.push_back("/dev/" + node);
    }
  }
  if (!closed.empty()) {
    return fail(fmt::format("{} cannot be opened: {}", fmt::join(closed, ", "), reason),
                "devices that this user may read and write",
                "let the device cgroup allow them (start the container with --gpus), or give them "
                "mode 0666");
  }
  return ok(fmt::format("{} GPU{}", nodes.size(), nodes.size() == 1 ? "" : "s"));
}

Finding check_gpu_nvml(const Machine& machine) {
  constexpr int kVersionMismatch = 18;  // NVML_ERROR_LIB_RM_VERSION_MISMATCH
  constexpr int kNotLoaded = 9;         // NVML_ERROR_DRIVER_NOT_LOADED
  if (gpu_nodes(machine).empty()) {
    return skip("no GPU here");
  }
  if (!machine.gpus.library) {
    return warn(
        "no libnvidia-ml.so.1: the health of the GPUs cannot be read",
        "NVIDIA's management library beside the devices",
        "start the container with the capability: NVIDIA_DRIVER_CAPABILITIES=compute,utility");
  }
  if (machine.gpus.error == kVersionMismatch) {
    return fail("NVML: driver and library differ in version (CUDA error 803 follows)",
                "the same version twice",
                "reboot the host, or reload the kernel module, after the driver's upgrade");
  }
  if (machine.gpus.error == kNotLoaded) {
    return fail("NVML: the driver is not loaded", "a loaded driver",
                "on the host: modprobe nvidia");
  }
  if (!machine.gpus.why.empty()) {
    return fail(base::printable(machine.gpus.why), "an NVML that answers",
                "look at the host's kernel log (dmesg | grep NVRM)");
  }
  return ok(fmt::format("driver {}, {} GPUs", base::printable(machine.gpus.driver),
                        machine.gpus.gpus.size()));
}

Finding check_gpu_visible(const Machine& machine) {
  std::size_t count = std::max(machine.gpus.gpus.size(), gpu_nodes(machine).size());
  if (count == 0 || !machine.has_variable("CUDA_VISIBLE_DEVICES")) {
    return count == 0 ? skip("no GPU here") : ok("all (CUDA_VISIBLE_DEVICES is unset)");
  }
  std::string value = machine.variable("CUDA_VISIBLE_DEVICES");
  std::string shown = base::printable("CUDA_VISIBLE_DEVICES=" + value);
  constexpr const char* kExpected = "indices of GPUs that exist, or UUIDs";
  if (value.empty() || value == "-1") {
    return warn(shown + " hides every GPU", kExpected, "unset it to train on the GPUs");
  }
  std::istringstream list(value);
  std::vector<std::string> seen;
  for (std::string item; std::getline(list, item, ',');) {
    bool is_index = !item.empty() && std::all_of(item.begin(), item.end(), [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    std::size_t index = is_index && item.size() < 6 ? std::stoul(item) : 0;
    if (is_index && (index >= count || item.size() >= 6)) {
      return fail(fmt::format("{}, but there are {} GPUs here: CUDA stops at the first that does "
                              "not exist",
                              shown, count),
                  fmt::format("{}, below {}", kExpected, count),
                  "count from 0 inside the container, whatever the host's numbers are");
    }
    if (is_index && std::find(seen.begin(), seen.end(), item) != seen.end()) {
      return fail(shown + " names a GPU twice: CUDA then shows none", kExpected,
                  "name each GPU once");
    }
    seen.push_back(item);
  }
  return ok(shown);
}

}  // namespace ljtrain::ljperf
