#include <fmt/format.h>

#include "check.h"
#include "drivers.h"
#include "image/driver_rules.h"

namespace ljtrain::ljperf {
namespace {

Finding from_answer(const image::DriverAnswer& answer) {
  switch (answer.verdict) {
    case image::Verdict::kOk:
      return ok(answer.why, answer.expected);
    case image::Verdict::kWarning:
      return warn(answer.why, answer.expected, answer.fix);
    case image::Verdict::kFailure:
      return fail(answer.why, answer.expected, answer.fix);
  }
  return {};
}

bool forward_compatibility(const Machine& machine) {
  std::optional<Libcuda> libcuda = find_libcuda(machine);
  return libcuda.has_value() && libcuda->from_compat_package;
}

}  // namespace

Finding check_gpu_libcuda(const Machine& machine) {
  std::optional<image::Version> kernel = kernel_driver(machine);
  if (gpu_nodes(machine).empty() || !kernel.has_value()) {
    return skip(gpu_nodes(machine).empty() ? "no GPU here" : "the driver's version is unknown");
  }
  std::optional<Libcuda> libcuda = find_libcuda(machine);
  if (!libcuda.has_value()) {
    return skip("no libcuda.so.1 with a version in its name");
  }
  Finding finding = from_answer(image::judge_halves(
      {*kernel, libcuda->version, libcuda->from_compat_package, gpu_class_here(machine)}));
  finding.found += finding.status == Status::kOk ? "" : fmt::format(" ({})", libcuda->path);
  return finding;
}

Finding check_gpu_driver(const Machine& machine) {
  std::optional<image::Version> kernel = kernel_driver(machine);
  if (gpu_nodes(machine).empty()) {
    return skip("no GPU here: see gpu.devices");
  }
  std::optional<CudaInUse> cuda = cuda_in_use(machine);
  if (!kernel.has_value() || !cuda.has_value()) {
    return skip(kernel.has_value() ? "no CUDA in use" : "the driver's version is unknown");
  }
  image::DriverQuestion question{*kernel, cuda->version, gpu_class_here(machine),
                                 forward_compatibility(machine)};
  bool policy = machine.release.has_value() && machine.release->driver.has_value();
  Finding finding = from_answer(policy ? image::judge_driver(question, *machine.release->driver)
                                       : image::judge_driver(question));
  finding.found += fmt::format(" (CUDA of {})", cuda->where);
  return finding;
}

Finding check_gpu_toolkit(const Machine& machine) {
  std::optional<image::Version> toolkit = cuda_toolkit(machine);
  std::optional<CudaInUse> cuda = cuda_in_use(machine);
  if (!toolkit.has_value() || !cuda.has_value()) {
    return skip("no CUDA toolkit beside a PyTorch for CUDA");
  }
  std::string found =
      fmt::format("toolkit {}, {} {}", toolkit->text(), cuda->where, cuda->version.text());
  if (toolkit->major() != cuda->version.major()) {
    return fail(
        found + ": extensions (DeepSpeed's, too) do not compile against it",
        fmt::format("a toolkit {}.x", cuda->version.major()),
        fmt::format("point CUDA_HOME to CUDA {}.{}", cuda->version.major(), cuda->version.minor()));
  }
  return ok(found);
}

}  // namespace ljtrain::ljperf
