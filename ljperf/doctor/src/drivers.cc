#include "drivers.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "python_packages.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::string_view kNvidiaVendor = "0x10de";
constexpr std::string_view kDisplayClass = "0x03";

// The folders that the loader searches, first one first.
std::vector<std::string> library_folders(const Machine& machine) {
  std::vector<std::string> folders;
  std::istringstream path(machine.variable("LD_LIBRARY_PATH"));
  for (std::string folder; std::getline(path, folder, ':');) {
    if (!folder.empty()) {
      folders.push_back(folder);
    }
  }
  for (const std::string& file : machine.list("/etc/ld.so.conf.d")) {
    std::istringstream lines(machine.read("/etc/ld.so.conf.d/" + file).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with('/')) {
        folders.push_back(line);
      }
    }
  }
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                             "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64"}) {
    folders.emplace_back(folder);
  }
  return folders;
}

}  // namespace

std::vector<std::string> gpu_nodes(const Machine& machine) {
  constexpr std::string_view kPrefix = "nvidia";
  std::vector<std::string> nodes;
  for (const std::string& name : machine.list("/dev")) {
    if (name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
        std::all_of(name.begin() + kPrefix.size(), name.end(),
                    [](unsigned char c) { return std::isdigit(c) != 0; })) {
      nodes.push_back(name);
    }
  }
  return nodes;
}

std::vector<std::string> gpus_on_bus(const Machine& machine) {
  std::vector<std::string> gpus;
  for (const std::string& device : machine.list("/sys/bus/pci/devices")) {
    std::string folder = "/sys/bus/pci/devices/" + device;
    if (machine.read(folder + "/vendor") == kNvidiaVendor &&
        machine.read(folder + "/class").value_or("").starts_with(kDisplayClass)) {
      gpus.push_back(device);
    }
  }
  return gpus;
}

std::optional<image::Version> kernel_driver(const Machine& machine) {
  std::optional<std::string> text = machine.read("/proc/driver/nvidia/version");
  if (text.has_value()) {
    return image::find_version(text->substr(0, text->find('\n')));
  }
  return image::parse_version(machine.gpus.driver);
}

std::optional<Libcuda> find_libcuda(const Machine& machine) {
  constexpr std::string_view kName = "libcuda.so.";
  for (const std::string& folder : library_folders(machine)) {
    std::string path = folder + "/libcuda.so.1";
    if (!machine.exists(path)) {
      continue;
    }
    std::string real = machine.follow(path);
    std::string file = real.substr(real.rfind('/') + 1);
    std::optional<image::Version> version =
        file.starts_with(kName) ? image::parse_version(file.substr(kName.size())) : std::nullopt;
    if (!version.has_value() || version->size() < 2) {
      return std::nullopt;  // a file without its version in the name says nothing
    }
    return Libcuda{path, *version, (folder + real).find("compat") != std::string::npos};
  }
  return std::nullopt;
}

std::optional<image::Version> cuda_toolkit(const Machine& machine) {
  base::Json version =
      base::Json::parse(machine.read("/usr/local/cuda/version.json").value_or(""), nullptr, false);
  base::Json::json_pointer key("/cuda/version");
  return version.is_object() && version.contains(key) && version[key].is_string()
             ? image::parse_version(version[key].get<std::string>())
             : std::nullopt;
}

std::optional<CudaInUse> cuda_in_use(const Machine& machine) {
  if (std::optional<TorchBuild> torch = read_torch_build(machine);
      torch.has_value() && torch->cuda.has_value()) {
    return CudaInUse{*torch->cuda, "PyTorch"};
  }
  if (machine.release.has_value() && machine.release->cuda.has_value()) {
    return CudaInUse{*machine.release->cuda, "release " + machine.release->name};
  }
  if (std::optional<image::Version> toolkit = cuda_toolkit(machine)) {
    return CudaInUse{*toolkit, "the toolkit"};
  }
  return std::nullopt;
}

image::GpuClass gpu_class_here(const Machine& machine) {
  image::GpuClass weakest = image::GpuClass::kUnknown;
  for (const GpuHealth& gpu : machine.gpus.gpus) {
    image::GpuClass one = image::gpu_class(gpu.brand, gpu.name);
    bool weaker = weakest == image::GpuClass::kUnknown || one == image::GpuClass::kConsumer ||
                  (one == image::GpuClass::kWorkstation && weakest != image::GpuClass::kConsumer);
    weakest = weaker ? one : weakest;
  }
  return weakest;
}

}  // namespace ljtrain::ljperf
