// Faults and their healthy twins: what a check must find, and what comes near and must stay ok.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "fake_machine.h"

namespace ljtrain::ljperf {

struct Fault {
  const char* name;
  const char* id;    // the check that finds it
  Status status;     // as which
  const char* says;  // a part of what it says
  void (*seed)(FakeMachine&);
  void (*twin)(FakeMachine&);  // no check may warn or fail
};

std::vector<Fault> gpu_faults();
std::vector<Fault> network_faults();
std::vector<Fault> host_faults();
std::vector<Fault> python_faults();

// What several of them do.
using F = FakeMachine;
inline constexpr auto kWarn = Status::kWarn;
inline constexpr auto kFail = Status::kFail;
inline constexpr const char* kSite = "/usr/lib/python3.12/site-packages";
inline constexpr const char* kVersion = "/usr/lib/python3.12/site-packages/torch/version.py";
inline constexpr const char* kLimits = "/proc/self/limits";

inline void several_hosts(F& m) {
  m.set("WORLD_SIZE", "16");
  m.set("LOCAL_WORLD_SIZE", "8");
  m.set("RANK", "0");
  m.set("MASTER_ADDR", "master");
  m.set("MASTER_PORT", "29500");
}
inline void without_gpus(F& m) {
  m.machine.gpus = GpuReport{};
  for (int i = 0; i < 8; ++i) {
    m.remove(fmt::format("/dev/nvidia{}", i));
  }
  m.write(kVersion, "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n");
}
inline void no_bus(F& m) { m.remove("/sys/bus/pci/devices"); }
inline void cuda(F& m, const char* version) {
  m.write(kVersion, fmt::format("__version__ = '2.13.0'\ncuda: Optional[str] = '{}'\n", version));
}
inline void consumer(F& m) {
  for (GpuHealth& gpu : m.machine.gpus.gpus) {
    gpu.name = "NVIDIA GeForce RTX 4090";
    gpu.brand = 5;
    gpu.ecc = false;
  }
}
inline void compat(F& m, const char* version) {
  m.write(fmt::format("/usr/local/cuda/compat/libcuda.so.{}", version), "");
  m.link("/usr/local/cuda/compat/libcuda.so.1", fmt::format("libcuda.so.{}", version));
  m.set("LD_LIBRARY_PATH", "/usr/local/cuda/compat");
}
inline void rdma(F& m, const char* state = "4: ACTIVE") {
  m.write("/sys/class/infiniband/mlx5_0/ports/1/state", state);
  m.write("/dev/infiniband/uverbs0", "");
}
inline void limit(F& m, const char* name, const char* value) {
  std::string line = fmt::format("{:<26}", name);
  std::string text = m.machine.read(kLimits).value_or("");
  std::size_t at = text.find(line) + line.size();
  m.write(kLimits, text.replace(at, text.find(' ', at) - at, value));
}
inline void shm(F& m, const char* options, const char* type = "tmpfs") {
  m.write("/proc/self/mountinfo",
          fmt::format("30 20 0:25 / /dev/shm rw,nosuid - {} shm {}\n", type, options));
}
inline GpuHealth& gpu(F& m, int index = 3) {
  return m.machine.gpus.gpus[static_cast<std::size_t>(index)];
}
inline void own_namespaces(F& m) {
  m.link("/proc/self/ns/ipc", "ipc:[4026532001]");
  m.link("/proc/self/ns/pid", "pid:[4026532002]");
}
inline void rank_process(F& m, int pid, int rank) {
  using namespace std::string_literals;
  m.write(fmt::format("/proc/{}/environ", pid),
          "HOME=/root\0LOCAL_RANK="s + std::to_string(rank) + "\0"s);
}
inline void status(F& m, const char* json) {
  m.machine.stack_status = [json](const std::filesystem::path&) { return base::Json::parse(json); };
}
inline void nothing(F&) {}

}  // namespace ljtrain::ljperf
