// What NVML and the kernel log say of each GPU.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "base/text.h"
#include "base/unique_fd.h"
#include "check.h"
#include "image/driver_rules.h"

namespace ljtrain::ljperf {
namespace {

std::string gpu_list(const std::vector<std::size_t>& gpus) {
  return fmt::format("GPU{} {}", gpus.size() == 1 ? "" : "s", fmt::join(gpus, ", "));
}

// The indices of the GPUs that satisfy the predicate.
template <typename Predicate>
std::vector<std::size_t> gpus_where(const Machine& machine, Predicate predicate) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < machine.gpus.gpus.size(); ++i) {
    if (predicate(machine.gpus.gpus[i])) {
      found.push_back(i);
    }
  }
  return found;
}

bool is_data_center(const GpuHealth& gpu) {
  return image::gpu_class(gpu.brand, gpu.name) == image::GpuClass::kDataCenter;
}

bool no_gpus(const Machine& machine) { return machine.gpus.gpus.empty(); }
Finding no_gpu() { return skip("no GPU here"); }

struct Xid {
  int code;
  const char* meaning;
  bool fatal;  // the GPU is not fit for work until mended
};
// NVIDIA, "XID Errors", those that speak of the hardware; the others (13, 31, 43, 45, ...) are
// mostly an application's own.
constexpr std::array kXids{
    Xid{48, "double-bit ECC error", true},
    Xid{62, "internal microcontroller halt", true},
    Xid{63, "row remapped", false},
    Xid{64, "row remapping failed", true},
    Xid{74, "NVLink error", true},
    Xid{79, "the GPU has fallen off the bus", true},
    Xid{92, "many single-bit ECC errors", false},
    Xid{94, "contained ECC error", false},
    Xid{95, "uncontained ECC error", true},
    Xid{119, "the GPU's system processor does not answer", true},
    Xid{120, "error in the GPU's system processor", true},
    Xid{140, "unrecovered ECC error", true},
};

// The kernel's log: its ring buffer where this user may read it, else the files it is kept in.
std::string kernel_log(const Machine& machine) {
  constexpr std::size_t kMost = std::size_t{4} << 20;
  std::string text;
  std::array<char, 8192> buffer{};
  base::UniqueFd fd(::open(machine.at("/dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  while (fd && text.size() < kMost) {
    ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size <= 0) {
      break;
    }
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return text;
}

// "NVRM: Xid (PCI:0000:17:00): 79, pid=..., GPU has fallen off the bus."
std::map<int, std::string> xids_in(const std::string& log) {
  std::map<int, std::string> found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::size_t at = line.find("NVRM: Xid (PCI:");
    std::size_t close = at == std::string::npos ? at : line.find("): ", at);
    if (close != std::string::npos) {
      constexpr std::size_t kPrefix = sizeof("NVRM: Xid (") - 1;
      found[std::atoi(line.c_str() + close + 3)] = line.substr(at + kPrefix, close - at - kPrefix);
    }
  }
  return found;
}

}  // namespace

Finding check_gpu_lost(const Machine& machine) {
  if (no_gpus(machine)) {
    return no_gpu();
  }
  auto lost = gpus_where(machine, [](const GpuHealth& gpu) { return gpu.lost; });
  if (!lost.empty()) {
    return fail(gpu_list(lost) + " lost: fallen off the bus", "every GPU answers",
                "drain the node and reset it; if it comes back, have the GPU replaced");
  }
  const std::string& first = machine.gpus.gpus.front().name;
  auto others = gpus_where(machine, [&](const GpuHealth& gpu) { return gpu.name != first; });
  if (!others.empty()) {
    return warn(fmt::format("{} of another model than GPU 0 ({})", gpu_list(others),
                            base::printable(first)),
                "GPUs of one model: the slowest sets the pace",
                "choose GPUs of one model with CUDA_VISIBLE_DEVICES");
  }
  return ok(fmt::format("{} × {}", machine.gpus.gpus.size(), base::printable(first)));
}

Finding check_gpu_ecc(const Machine& machine) {
  if (no_gpus(machine)) {
    return no_gpu();
  }
  auto broken = gpus_where(
      machine, [](const GpuHealth& gpu) { return gpu.uncorrected_errors.value_or(0) > 0; });
  if (!broken.empty()) {
    return fail(
        fmt::format("{}: {} uncorrected memory errors since the driver was loaded",
                    gpu_list(broken), *machine.gpus.gpus[broken.front()].uncorrected_errors),
        "none", "drain the node and reset the GPU (nvidia-smi -r); replace it if they return");
  }
  auto off = gpus_where(machine, [](const GpuHealth& gpu) {
    return is_data_center(gpu) && gpu.ecc.has_value() && !*gpu.ecc;
  });
  if (!off.empty()) {
    return warn(gpu_list(off) + ": ECC is off, memory errors pass unseen", "ECC on",
                "on the host: nvidia-smi -e 1, then reboot");
  }
  return ok("no uncorrected errors");
}

Finding check_gpu_rows(const Machine& machine) {
  if (no_gpus(machine)) {
    return no_gpu();
  }
  auto failed =
      gpus_where(machine, [](const GpuHealth& gpu) { return gpu.remap_failed.value_or(false); });
  if (!failed.empty()) {
    return fail(gpu_list(failed) + ": remapping of a memory row failed", "no failure",
                "have the GPU replaced");
  }
  auto pending =
      gpus_where(machine, [](const GpuHealth& gpu) { return gpu.remap_pending.value_or(false); });
  if (!pending.empty()) {
    return warn(gpu_list(pending) + ": a memory row waits to be remapped", "none waiting",
                "reset the GPU when it is idle: nvidia-smi -r");
  }
  return ok("none waiting");
}

Finding check_gpu_xid(const Machine& machine) {
  if (no_gpus(machine)) {
    return no_gpu();
  }
  std::map<int, std::string> seen = xids_in(kernel_log(machine));
  for (bool fatal : {true, false}) {
    for (const Xid& xid : kXids) {
      auto found = seen.find(xid.code);
      if (found == seen.end() || xid.fatal != fatal) {
        continue;
      }
      std::string text = fmt::format("Xid {} since the boot ({}): {}", xid.code, xid.meaning,
                                     base::printable(found->second));
      return fatal ? fail(text, "no Xid of the hardware",
                          "drain the node, reset or reboot it; see NVIDIA's list of Xid errors")
                   : warn(text, "no Xid of the hardware",
                          "watch it: reset the GPU when idle, replace it if it comes again");
    }
  }
  return ok("no Xid of the hardware in the kernel log that can be read here");
}

Finding check_gpu_throttling(const Machine& machine) {
  // nvmlClocksEventReasons; idle, application clocks and the power cap are no fault.
  constexpr std::uint64_t kHardware = 0x8 | 0x40 | 0x80;
  constexpr std::uint64_t kBrake = 0x80;
  constexpr std::uint64_t kThermal = 0x20 | 0x40;
  if (no_gpus(machine)) {
    return no_gpu();
  }
  auto slow = gpus_where(machine, [](const GpuHealth& gpu) {
    return (gpu.throttle_reasons.value_or(0) & (kHardware | kThermal)) != 0;
  });
  if (slow.empty()) {
    return ok("none");
  }
  std::uint64_t reasons = *machine.gpus.gpus[slow.front()].throttle_reasons;
  const char* why = (reasons & kBrake) != 0     ? "the power supply brakes it"
                    : (reasons & kThermal) != 0 ? "too hot"
                                                : "the hardware slows it down";
  return (reasons & kHardware) != 0
             ? fail(fmt::format("{} throttled: {}", gpu_list(slow), why), "full clocks",
                    "look at power supply and cooling of the node; a job runs at the pace of its "
                    "slowest GPU")
             : warn(fmt::format("{} throttled: {}", gpu_list(slow), why), "full clocks",
                    "look at the cooling of the node");
}

Finding check_gpu_nvlink(const Machine& machine) {
  if (no_gpus(machine)) {
    return no_gpu();
  }
  int most = 0;
  for (const GpuHealth& gpu : machine.gpus.gpus) {
    most = std::max(most, gpu.links_active);
  }
  if (most == 0) {
    return skip("no NVLink active");
  }
  auto fewer = gpus_where(
      machine, [&](const GpuHealth& gpu) { return !gpu.lost && gpu.links_active < most; });
  if (!fewer.empty()) {
    const GpuHealth& gpu = machine.gpus.gpus[fewer.front()];
    return fail(
        fmt::format("{}: {} of {} NVLinks active", gpu_list(fewer), gpu.links_active, most),
        "as many on each GPU",
        "check fabric manager (systemctl status nvidia-fabricmanager), then reset the node");
  }
  return ok(fmt::format("{} links on each GPU", most));
}

Finding check_gpu_pcie(const Machine& machine) {
  if (no_gpus(machine)) {
    return no_gpu();
  }
  auto narrow = gpus_where(machine, [](const GpuHealth& gpu) {
    return gpu.pcie_width.has_value() && gpu.pcie_width_most.has_value() && *gpu.pcie_width > 0 &&
           *gpu.pcie_width < *gpu.pcie_width_most;
  });
  if (!narrow.empty()) {
    const GpuHealth& gpu = machine.gpus.gpus[narrow.front()];
    return warn(fmt::format("{}: PCIe x{}, made for x{}", gpu_list(narrow), *gpu.pcie_width,
                            *gpu.pcie_width_most),
                "the full width", "reseat the card or riser; copies to the host are slower");
  }
  return ok("full width");
}

Finding check_gpu_peers(const Machine& machine) {
  if (machine.gpus.gpus.size() < 2) {
    return skip("fewer than two GPUs");
  }
  auto apart = gpus_where(machine, [](const GpuHealth& gpu) {
    return is_data_center(gpu) && !gpu.peers_without_access.empty();
  });
  if (!apart.empty()) {
    return warn(
        fmt::format("{} cannot reach GPU {} directly: traffic goes through the host",
                    gpu_list(apart), machine.gpus.gpus[apart.front()].peers_without_access.front()),
        "peer access between all GPUs",
        "disable ACS in the BIOS or the IOMMU (iommu=pt); check nvidia-smi topo -p2p r");
  }
  return ok("direct, as far as the GPUs can");
}

Finding check_gpu_persistence(const Machine& machine) {
  if (no_gpus(machine)) {
    return no_gpu();
  }
  auto off = gpus_where(machine, [](const GpuHealth& gpu) {
    return is_data_center(gpu) && gpu.persistence.has_value() && !*gpu.persistence;
  });
  if (!off.empty()) {
    return warn(gpu_list(off) + ": persistence mode is off, each start waits for the driver", "on",
                "on the host: systemctl enable --now nvidia-persistenced");
  }
  return ok("on");
}

Finding check_gpu_mig(const Machine& machine) {
  if (no_gpus(machine)) {
    return no_gpu();
  }
  auto cut = gpus_where(machine, [](const GpuHealth& gpu) { return gpu.mig.value_or(false); });
  if (cut.empty()) {
    return ok("off");
  }
  if (machine.task == Purpose::kInference) {
    return ok(gpu_list(cut) + ": on");
  }
  return warn(gpu_list(cut) + ": MIG is on, a process sees one slice and no peer",
              "off for training on whole GPUs", "on the host, when idle: nvidia-smi -mig 0");
}

Finding check_gpu_mode(const Machine& machine) {
  if (no_gpus(machine)) {
    return no_gpu();
  }
  auto closed =
      gpus_where(machine, [](const GpuHealth& gpu) { return gpu.prohibited.value_or(false); });
  if (!closed.empty()) {
    return fail(gpu_list(closed) + ": compute mode is Prohibited", "Default",
                "on the host: nvidia-smi -c DEFAULT");
  }
  return ok("open to processes");
}

}  // namespace ljtrain::ljperf
