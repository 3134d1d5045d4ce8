#include "faults.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "doctor/examine.h"
#include "doctor/run_doctor.h"

namespace ljtrain::ljperf {
namespace {

using F = FakeMachine;
constexpr auto kWarn = Status::kWarn;
constexpr auto kFail = Status::kFail;
constexpr const char* kSite = "/usr/lib/python3.12/site-packages";
constexpr const char* kVersion = "/usr/lib/python3.12/site-packages/torch/version.py";
constexpr const char* kLimits = "/proc/self/limits";

void several_hosts(F& m) {
  m.set("WORLD_SIZE", "16");
  m.set("LOCAL_WORLD_SIZE", "8");
  m.set("RANK", "0");
  m.set("MASTER_ADDR", "master");
  m.set("MASTER_PORT", "29500");
}
void without_gpus(F& m) {
  m.machine.gpus = GpuReport{};
  for (int i = 0; i < 8; ++i) {
    m.remove(fmt::format("/dev/nvidia{}", i));
  }
  m.write(kVersion, "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n");
}
void no_bus(F& m) { m.remove("/sys/bus/pci/devices"); }
void cuda(F& m, const char* version) {
  m.write(kVersion, fmt::format("__version__ = '2.13.0'\ncuda: Optional[str] = '{}'\n", version));
}
void consumer(F& m) {
  for (GpuHealth& gpu : m.machine.gpus.gpus) {
    gpu.name = "NVIDIA GeForce RTX 4090";
    gpu.brand = 5;
    gpu.ecc = false;
  }
}
void compat(F& m, const char* version) {
  m.write(fmt::format("/usr/local/cuda/compat/libcuda.so.{}", version), "");
  m.link("/usr/local/cuda/compat/libcuda.so.1", fmt::format("libcuda.so.{}", version));
  m.set("LD_LIBRARY_PATH", "/usr/local/cuda/compat");
}
void rdma(F& m, const char* state = "4: ACTIVE") {
  m.write("/sys/class/infiniband/mlx5_0/ports/1/state", state);
  m.write("/dev/infiniband/uverbs0", "");
}
void limit(F& m, const char* name, const char* value) {
  std::string line = fmt::format("{:<26}", name);
  std::string text = m.machine.read(kLimits).value_or("");
  std::size_t at = text.find(line) + line.size();
  m.write(kLimits, text.replace(at, text.find(' ', at) - at, value));
}
void shm(F& m, const char* options, const char* type = "tmpfs") {
  m.write("/proc/self/mountinfo",
          fmt::format("30 20 0:25 / /dev/shm rw,nosuid - {} shm {}\n", type, options));
}
GpuHealth& gpu(F& m, int index = 3) { return m.machine.gpus.gpus[static_cast<std::size_t>(index)]; }
void own_namespaces(F& m) {
  m.link("/proc/self/ns/ipc", "ipc:[4026532001]");
  m.link("/proc/self/ns/pid", "pid:[4026532002]");
}
void rank_process(F& m, int pid, int rank) {
  using namespace std::string_literals;
  m.write(fmt::format("/proc/{}/environ", pid),
          "HOME=/root\0LOCAL_RANK="s + std::to_string(rank) + "\0"s);
}
void status(F& m, const char* json) {
  m.machine.stack_status = [json](const std::filesystem::path&) { return base::Json::parse(json); };
}
void nothing(F&) {}

const std::vector<Fault> kGpuFaults = {
    // nvidia-docker#400: "driver insufficient" where only no device was passed in.
    {"no device passed in", "gpu.devices", kFail, "--gpus all",
     [](F& m) { without_gpus(m); m.set("NVIDIA_VISIBLE_DEVICES", "all"); },
     [](F& m) { without_gpus(m); m.set("NVIDIA_VISIBLE_DEVICES", "void"); }},
    {"PyTorch for CUDA, no device", "gpu.devices", kFail, "no /dev/nvidia0",
     [](F& m) { without_gpus(m); cuda(m, "13.0"); }, without_gpus},
    {"no kernel module", "gpu.devices", kFail, "modprobe",
     [](F& m) { without_gpus(m); m.remove("/proc/driver/nvidia/version"); },
     [](F& m) { without_gpus(m); m.remove("/proc/driver/nvidia/version"); no_bus(m); }},
    {"nouveau has the GPU", "gpu.devices", kFail, "nouveau",
     [](F& m) { without_gpus(m); m.remove("/proc/driver/nvidia/version"); m.link("/sys/bus/pci/devices/0000:10:00.0/driver", "../../drivers/nouveau"); },
     [](F& m) { without_gpus(m); m.remove("/proc/driver/nvidia/version"); m.link("/sys/bus/pci/devices/0000:10:00.0/driver", "../../drivers/vfio-pci"); }},
    {"no nvidia-uvm", "gpu.devices", kFail, "nvidia-uvm", [](F& m) { m.remove("/dev/nvidia-uvm"); },
     [](F& m) { m.write("/dev/nvidia-uvm-tools", ""); }},
    {"no nvidiactl", "gpu.devices", kFail, "nvidiactl", [](F& m) { m.remove("/dev/nvidiactl"); },
     [](F& m) { m.write("/dev/nvidia-modeset", ""); }},
    {"a device that cannot be opened", "gpu.devices", kFail, "/dev/nvidia5",
     [](F& m) { m.folder("/dev/nvidia5"); }, [](F& m) { m.folder("/dev/nvidia-caps"); }},
    {"no management library", "gpu.nvml", kWarn, "utility",
     [](F& m) { m.machine.gpus = GpuReport{}; }, nothing},
    // faster-whisper#653: CUDA error 803.
    {"driver halves differ, says NVML", "gpu.nvml", kFail, "803",
     [](F& m) { m.machine.gpus = {.library = true, .error = 18, .why = "error 18", .driver = "", .gpus = {}}; }, nothing},
    {"driver not loaded, says NVML", "gpu.nvml", kFail, "modprobe",
     [](F& m) { m.machine.gpus = {.library = true, .error = 9, .why = "error 9", .driver = "", .gpus = {}}; }, nothing},
    {"libcuda of another version", "gpu.libcuda", kFail, "803",
     [](F& m) { m.link("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.575.57.08"); m.write("/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08", ""); },
     [](F& m) { m.write("/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08", ""); }},
    // cusignal#398: CUDA error 804.
    {"forward compatibility on a consumer GPU", "gpu.libcuda", kFail, "804",
     [](F& m) { m.driver("570.124.06"); compat(m, "580.65.06"); consumer(m); },
     [](F& m) { m.driver("570.124.06"); compat(m, "580.65.06"); }},
    {"a cuda-compat older than the driver", "gpu.libcuda", kFail, "take the cuda-compat folder off",
     [](F& m) { compat(m, "575.57.08"); },
     [](F& m) { m.driver("535.104.05"); compat(m, "580.65.06"); }},
    {"driver one branch too old", "gpu.driver", kFail, "580.65.6 or newer",
     [](F& m) { m.driver("575.57.08"); }, [](F& m) { m.driver("575.57.08"); cuda(m, "12.9"); }},
    {"driver below by its last number", "gpu.driver", kFail, "525.60.13",
     [](F& m) { m.driver("525.60.9"); cuda(m, "12.8"); },
     [](F& m) { m.driver("525.105.17"); cuda(m, "12.8"); }},
    {"forward compatibility from no target branch", "gpu.driver", kFail, "R575",
     [](F& m) { m.driver("575.57.08"); compat(m, "580.65.06"); },
     [](F& m) { m.driver("570.124.06"); compat(m, "580.65.06"); }},
    // DeepSpeed PR#3436: a policy above the rule warns, it does not fail.
    {"policy above the rule", "gpu.driver", kWarn, "the release asks for 580",
     [](F& m) { m.driver("570.124.06"); cuda(m, "12.8"); m.release("26.05"); m.machine.release->components.clear(); m.machine.release->do_not_reinstall.clear(); },
     [](F& m) { cuda(m, "12.8"); m.release("26.05"); m.machine.release->components.clear(); m.machine.release->do_not_reinstall.clear(); }},
    {"toolkit of another major", "gpu.toolkit", kFail, "CUDA_HOME",
     [](F& m) { m.write("/usr/local/cuda/version.json", R"({"cuda": {"version": "12.8.0"}})"); },
     [](F& m) { m.write("/usr/local/cuda/version.json", R"({"cuda": {"version": "13.2.0"}})"); }},
    {"an index beyond the GPUs", "gpu.visible", kFail, "8 GPUs",
     [](F& m) { m.set("CUDA_VISIBLE_DEVICES", "0,8"); }, [](F& m) { m.set("CUDA_VISIBLE_DEVICES", "0,7"); }},
    {"a GPU named twice", "gpu.visible", kFail, "twice",
     [](F& m) { m.set("CUDA_VISIBLE_DEVICES", "1,1"); }, [](F& m) { m.set("CUDA_VISIBLE_DEVICES", "1,0"); }},
    {"every GPU hidden", "gpu.visible", kWarn, "hides", [](F& m) { m.set("CUDA_VISIBLE_DEVICES", ""); },
     [](F& m) { m.set("CUDA_VISIBLE_DEVICES", "GPU-8a1b"); }},
    {"a GPU lost", "gpu.lost", kFail, "GPU 3", [](F& m) { gpu(m).lost = true; }, nothing},
    {"GPUs of two models", "gpu.lost", kWarn, "another model", [](F& m) { gpu(m).name = "NVIDIA H200"; },
     [](F& m) { for (GpuHealth& g : m.machine.gpus.gpus) { g.name = "NVIDIA H200"; } }},
    {"uncorrected memory errors", "gpu.ecc", kFail, "2 uncorrected", [](F& m) { gpu(m).uncorrected_errors = 2; },
     [](F& m) { gpu(m).uncorrected_errors.reset(); }},
    {"ECC off", "gpu.ecc", kWarn, "ECC is off", [](F& m) { gpu(m).ecc = false; }, consumer},
    {"row remapping failed", "gpu.rows", kFail, "replaced", [](F& m) { gpu(m).remap_failed = true; },
     [](F& m) { gpu(m).remap_failed.reset(); }},
    {"a row waits", "gpu.rows", kWarn, "reset", [](F& m) { gpu(m).remap_pending = true; },
     [](F& m) { gpu(m).remap_pending.reset(); }},
    {"Xid 79", "gpu.xid", kFail, "fallen off",
     [](F& m) { m.write("/dev/kmsg", "4,9,9,-;NVRM: Xid (PCI:0000:13:00): 79, pid=1, GPU has fallen off the bus.\n"); },
     [](F& m) { m.write("/dev/kmsg", "4,9,9,-;NVRM: Xid (PCI:0000:13:00): 31, pid=1, an application's page fault\n"); }},
    {"Xid 94", "gpu.xid", kWarn, "contained",
     [](F& m) { m.write("/dev/kmsg", "4,9,9,-;NVRM: Xid (PCI:0000:13:00): 94, pid=1\n"); },
     [](F& m) { m.write("/dev/kmsg", "4,9,9,-;NVRM: Xid (PCI:0000:13:00): 13, pid=94\n"); }},
    {"throttled by hardware", "gpu.throttling", kFail, "too hot", [](F& m) { gpu(m).throttle_reasons = 0x40; },
     [](F& m) { gpu(m).throttle_reasons = 0x4; }},
    {"throttled by software for heat", "gpu.throttling", kWarn, "cooling", [](F& m) { gpu(m).throttle_reasons = 0x20; },
     [](F& m) { gpu(m).throttle_reasons = 0x2; }},
    {"an NVLink down", "gpu.nvlink", kFail, "17 of 18", [](F& m) { gpu(m).links_active = 17; },
     [](F& m) { for (GpuHealth& g : m.machine.gpus.gpus) { g.links_active = 12; } }},
    {"PCIe at half width", "gpu.pcie", kWarn, "x8", [](F& m) { gpu(m).pcie_width = 8; },
     [](F& m) { gpu(m).pcie_width = 8; gpu(m).pcie_width_most = 8; }},
    {"no peer access", "gpu.peers", kWarn, "GPU 3 cannot reach GPU 0", [](F& m) { gpu(m).peers_without_access = {0}; },
     [](F& m) { consumer(m); gpu(m).peers_without_access = {0}; }},
    {"persistence off", "gpu.persistence", kWarn, "persistenced", [](F& m) { gpu(m).persistence = false; },
     [](F& m) { consumer(m); gpu(m).persistence = false; }},
    {"MIG on", "gpu.mig", kWarn, "slice", [](F& m) { gpu(m).mig = true; },
     [](F& m) { gpu(m).mig = true; m.machine.task = Purpose::kInference; }},
    {"compute mode prohibited", "gpu.mode", kFail, "DEFAULT", [](F& m) { gpu(m).prohibited = true; },
     [](F& m) { gpu(m).prohibited.reset(); }},
};

const std::vector<Fault> kNetworkFaults = {
    // aws/deep-learning-containers PR#6469.
    {"an interface that does not exist", "network.interface", kFail, "NCCL_SOCKET_IFNAME==eth0",
     [](F& m) { m.set("NCCL_SOCKET_IFNAME", "hpn0"); }, [](F& m) { m.set("NCCL_SOCKET_IFNAME", "eth"); }},
    {"an interface that is down", "network.interface", kFail, "is down",
     [](F& m) { m.interface("eth1", 3, false, false); m.set("NCCL_SOCKET_IFNAME", "eth1"); },
     [](F& m) { m.interface("eth1", 3, false, false); m.set("NCCL_SOCKET_IFNAME", "eth0"); }},
    {"an interface without address", "network.interface", kFail, "no address",
     [](F& m) { m.interface("eth1", 3, true, false); m.set("NCCL_SOCKET_IFNAME", "eth1"); },
     [](F& m) { m.interface("eth1", 3, true, false); }},
    // NVIDIA/nccl#913.
    {"docker chosen", "network.interface", kWarn, "docker0",
     [](F& m) { m.interface("docker0", 3); m.set("NCCL_SOCKET_IFNAME", "docker"); },
     [](F& m) { m.interface("docker0", 3); }},
    {"loopback for several hosts", "network.interface", kFail, "no other host",
     [](F& m) { several_hosts(m); m.set("NCCL_SOCKET_IFNAME", "lo"); }, [](F& m) { m.set("NCCL_SOCKET_IFNAME", "lo"); }},
    {"^lo lets docker in", "network.interface", kWarn, "docker0",
     [](F& m) { m.interface("docker0", 3); m.set("NCCL_SOCKET_IFNAME", "^lo"); },
     [](F& m) { m.interface("docker0", 3); m.set("NCCL_SOCKET_IFNAME", "^lo,docker"); }},
    {"a prefix takes another interface", "network.interface", kWarn, "eth10",
     [](F& m) { m.interface("eth1", 3); m.interface("eth10", 4); m.set("NCCL_SOCKET_IFNAME", "eth1"); },
     [](F& m) { m.interface("eth1", 3); m.interface("eth10", 4); m.set("NCCL_SOCKET_IFNAME", "=eth1"); }},
    {"16 GPUs a pod on eth0", "network.rule", kWarn, "NCCL_SOCKET_IFNAME=hpn0",
     [](F& m) { for (int i = 8; i < 16; ++i) { m.write(fmt::format("/dev/nvidia{}", i), ""); m.machine.gpus.gpus.push_back(gpu(m)); } m.interface("hpn0", 3); m.release("0.1.0"); m.set("NCCL_SOCKET_IFNAME", "eth0"); },
     [](F& m) { for (int i = 8; i < 16; ++i) { m.write(fmt::format("/dev/nvidia{}", i), ""); m.machine.gpus.gpus.push_back(gpu(m)); } m.interface("hpn0", 3); m.release("0.1.0"); m.set("NCCL_SOCKET_IFNAME", "hpn0"); }},
    {"8 GPUs a pod on hpn0", "network.rule", kWarn, "NCCL_SOCKET_IFNAME=eth0",
     [](F& m) { m.interface("hpn0", 3); m.release("0.1.0"); m.set("NCCL_SOCKET_IFNAME", "hpn0"); },
     [](F& m) { m.interface("hpn0", 3); m.release("0.1.0"); m.set("NCCL_SOCKET_IFNAME", "eth0"); }},
    {"the rule of another network", "network.rule", kWarn, "has no eth0",
     [](F& m) { m.remove("/sys/class/net/eth0"); m.interface("ens5", 3); m.release("0.1.0"); },
     [](F& m) { m.remove("/sys/class/net/eth0"); m.interface("ens5", 3); }},
    {"a release for the other task", "network.rule", kWarn, "not for inference",
     [](F& m) { m.release("0.1.0"); m.machine.task = Purpose::kInference; }, [](F& m) { m.release("0.1.0"); }},
    {"Gloo's interface by prefix", "network.gloo", kFail, "no interface eth",
     [](F& m) { m.set("GLOO_SOCKET_IFNAME", "eth"); }, [](F& m) { m.set("GLOO_SOCKET_IFNAME", "eth0"); }},
    {"an RDMA port down", "network.rdma", kWarn, "mlx5_0:1", [](F& m) { rdma(m, "1: DOWN"); }, [](F& m) { rdma(m); }},
    {"an HCA that does not exist", "network.rdma", kFail, "mlx5_9",
     [](F& m) { rdma(m); m.set("NCCL_IB_HCA", "mlx5_9"); }, [](F& m) { rdma(m); m.set("NCCL_IB_HCA", "=mlx5_0:1"); }},
    {"RDMA without its devices", "network.rdma", kWarn, "/dev/infiniband",
     [](F& m) { rdma(m); m.remove("/dev/infiniband"); }, [](F& m) { rdma(m); }},
    {"RDMA switched off", "network.rdma", kWarn, "NCCL_IB_DISABLE",
     [](F& m) { several_hosts(m); rdma(m); m.set("NCCL_IB_DISABLE", "1"); }, [](F& m) { several_hosts(m); rdma(m); m.set("NCCL_IB_DISABLE", "0"); }},
    {"RANK without WORLD_SIZE", "network.ranks", kFail, "WORLD_SIZE",
     [](F& m) { several_hosts(m); m.machine.environment.erase("WORLD_SIZE"); }, several_hosts},
    {"RANK beyond WORLD_SIZE", "network.ranks", kFail, "RANK=16",
     [](F& m) { several_hosts(m); m.set("RANK", "16"); }, [](F& m) { several_hosts(m); m.set("RANK", "15"); }},
    {"more local ranks than GPUs", "network.ranks", kFail, "LOCAL_RANK=8",
     [](F& m) { several_hosts(m); m.set("LOCAL_RANK", "8"); }, [](F& m) { several_hosts(m); m.set("LOCAL_RANK", "7"); }},
    // pytorch PR#26166.
    {"the master resolves to loopback", "network.master", kFail, "loopback",
     [](F& m) { several_hosts(m); m.set("MASTER_ADDR", "thishost"); },
     [](F& m) { m.set("MASTER_ADDR", "thishost"); }},
    {"the master is 127.0.0.1", "network.master", kFail, "rank 0's host",
     [](F& m) { several_hosts(m); m.set("MASTER_ADDR", "127.0.0.1"); },
     [](F& m) { several_hosts(m); m.set("MASTER_ADDR", "10.0.0.9"); }},
    {"the master does not resolve", "network.master", kFail, "does not resolve",
     [](F& m) { several_hosts(m); m.set("MASTER_ADDR", "nowhere"); },
     [](F& m) { several_hosts(m); m.set("MASTER_ADDR", "node1"); }},
    {"a port that is none", "network.port", kFail, "65535",
     [](F& m) { several_hosts(m); m.set("MASTER_PORT", "65536"); }, [](F& m) { several_hosts(m); m.set("MASTER_PORT", "65535"); }},
    {"the port is taken", "network.port", kWarn, "29500",
     [](F& m) { several_hosts(m); m.write("/proc/net/tcp", "  0: 00000000:733C 00000000:0000 0A 0\n"); },
     [](F& m) { several_hosts(m); m.write("/proc/net/tcp", "  0: 00000000:733C 00000000:0000 06 0\n"); }},
    {"a host that does not answer", "network.hosts", kFail, "no answer",
     [](F& m) { m.machine.hosts = {"node1"}; m.machine.reach = [](const std::string&, const std::string&) { return std::string("no answer"); }; },
     [](F& m) { m.machine.hosts = {"node1"}; }},
};

const std::vector<Fault> kHostFaults = {
    // NVIDIA/nccl#342; kubernetes#28272.
    {"/dev/shm of 64 MiB", "memory.shm", kFail, "--ipc=host", [](F& m) { shm(m, "rw,size=65536k"); },
     [](F& m) { shm(m, "rw,size=1048576k"); }},
    {"/dev/shm of 512 MiB", "memory.shm", kWarn, "512", [](F& m) { shm(m, "rw,size=524288k"); },
     [](F& m) { shm(m, "rw,size=524288k"); m.machine.task = Purpose::kInference; }},
    {"/dev/shm on a disk", "memory.shm", kWarn, "evicted", [](F& m) { shm(m, "rw", "ext4"); }, [](F& m) { shm(m, "rw"); }},
    {"no /dev/shm", "memory.shm", kFail, "not mounted", [](F& m) { m.write("/proc/self/mountinfo", "1 1 0:1 / / rw - ext4 x rw\n"); }, nothing},
    {"/dev/shm full", "memory.shm-free", kWarn, "left_over",
     [](F& m) { shm(m, "rw,size=1g"); std::ofstream(m.machine.at("/dev/shm/left_over")); std::filesystem::resize_file(m.machine.at("/dev/shm/left_over"), 1000u << 20); },
     [](F& m) { shm(m, "rw,size=1g"); std::ofstream(m.machine.at("/dev/shm/in_use")); std::filesystem::resize_file(m.machine.at("/dev/shm/in_use"), 500u << 20); }},
    {"memlock too small for RDMA", "memory.locked", kFail, "memlock=-1",
     [](F& m) { rdma(m); limit(m, "Max locked memory", "8388608"); }, [](F& m) { limit(m, "Max locked memory", "8388608"); }},
    {"cgroup v2 nearly full", "memory.cgroup", kWarn, "in use",
     [](F& m) { m.write("/sys/fs/cgroup/memory.max", "8589934592\n"); m.write("/sys/fs/cgroup/memory.current", "8500000000\n"); },
     [](F& m) { m.write("/sys/fs/cgroup/memory.max", "8589934592\n"); m.write("/sys/fs/cgroup/memory.current", "8500000000\n"); m.write("/sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 6000000000\n"); }},
    {"cgroup v1 limit of 1 GiB", "memory.cgroup", kWarn, "1.00 GiB",
     [](F& m) { m.write("/proc/self/cgroup", "4:memory:/a\n"); m.write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n"); },
     [](F& m) { m.write("/proc/self/cgroup", "4:memory:/a\n"); m.write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"); }},
    {"no huge pages", "memory.huge-pages", kWarn, "madvise", [](F& m) { m.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"); },
     [](F& m) { m.write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"); }},
    {"half the memory reserved", "memory.reserved", kWarn, "nr_hugepages", [](F& m) { m.edit("/proc/meminfo", "HugePages_Free:        0", "HugePages_Free:    32768"); },
     [](F& m) { m.edit("/proc/meminfo", "HugePages_Free:        0", "HugePages_Free:     1024"); }},
    {"few open files", "limits.files", kWarn, "4096", [](F& m) { limit(m, "Max open files", "1024"); }, [](F& m) { limit(m, "Max open files", "4096"); }},
    {"hardly any open files", "limits.files", kFail, "ulimit -n: 128", [](F& m) { limit(m, "Max open files", "128"); },
     [](F& m) { limit(m, "Max open files", "1024"); m.set("LOCAL_WORLD_SIZE", "1"); }},
    {"few processes", "limits.processes", kFail, "ulimit -u", [](F& m) { limit(m, "Max processes", "1024"); }, [](F& m) { limit(m, "Max processes", "65536"); }},
    {"pids.max of cgroup v2", "limits.processes", kFail, "pids.max: 1024", [](F& m) { m.write("/sys/fs/cgroup/pids.max", "1024\n"); }, [](F& m) { m.write("/sys/fs/cgroup/pids.max", "38000\n"); }},
    {"pids.max of cgroup v1", "limits.processes", kFail, "pids.max: 100",
     [](F& m) { m.write("/proc/self/cgroup", "8:pids:/pod\n0::/\n"); m.write("/sys/fs/cgroup/pids/pod/pids.max", "100\n"); },
     [](F& m) { m.write("/proc/self/cgroup", "8:pids:/pod\n0::/\n"); m.write("/sys/fs/cgroup/pids/pod/pids.max", "max\n"); }},
    {"a small stack", "limits.stack", kFail, "ulimit -s", [](F& m) { limit(m, "Max stack size", "65536"); }, [](F& m) { limit(m, "Max stack size", "unlimited"); }},
    {"limited address space", "limits.address-space", kFail, "CUDA", [](F& m) { limit(m, "Max address space", "68719476736"); }, nothing},
    {"limited files", "limits.file-size", kWarn, "checkpoints", [](F& m) { limit(m, "Max file size", "1073741824"); }, [](F& m) { limit(m, "Max file size", "1099511627776"); }},
    {"limited CPU time", "limits.cpu-time", kWarn, "compute node", [](F& m) { limit(m, "Max cpu time", "3600"); }, nothing},
    {"CPU quota below the threads", "limits.cpu-quota", kWarn, "OMP_NUM_THREADS=4", [](F& m) { m.write("/sys/fs/cgroup/cpu.max", "400000 100000\n"); },
     [](F& m) { m.write("/sys/fs/cgroup/cpu.max", "400000 100000\n"); m.set("OMP_NUM_THREADS", "4"); }},
    {"NUMA balancing", "host.numa", kWarn, "numa_balancing=0", [](F& m) { m.write("/proc/sys/kernel/numa_balancing", "1\n"); },
     [](F& m) { m.write("/proc/sys/kernel/numa_balancing", "1\n"); m.write("/sys/devices/system/node/online", "0\n"); }},
    {"powersave that stays low", "host.governor", kWarn, "cpupower",
     [](F& m) { m.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"); m.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n"); },
     [](F& m) { m.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"); }},
    {"ranks in containers of their own", "host.ipc", kWarn, "--ipc=host", [](F& m) { own_namespaces(m); m.set("LOCAL_WORLD_SIZE", "2"); rank_process(m, 7, 0); },
     [](F& m) { own_namespaces(m); m.set("LOCAL_WORLD_SIZE", "2"); rank_process(m, 7, 0); rank_process(m, 8, 1); }},
    {"ptrace for nobody", "host.ptrace", kWarn, "py-spy", [](F& m) { m.write("/proc/sys/kernel/yama/ptrace_scope", "2\n"); }, [](F& m) { m.write("/proc/sys/kernel/yama/ptrace_scope", "0\n"); }},
    {"a clock of 1970", "host.clock", kFail, "past", [](F& m) { m.machine.now = 86400; }, nothing},
    {"clocks adrift", "host.clock", kWarn, "makestep", [](F& m) { several_hosts(m); m.machine.clock = [] { return ClockState{true, 2.0}; }; },
     [](F& m) { m.machine.clock = [] { return ClockState{true, 2.0}; }; }},
    {"no clock service", "host.clock", kWarn, "chronyd", [](F& m) { several_hosts(m); m.machine.clock = [] { return ClockState{false, 0}; }; },
     [](F& m) { m.machine.clock = [] { return ClockState{false, 0}; }; }},
};

const std::vector<Fault> kPythonFaults = {
    {"a CPU build beside GPUs", "python.torch", kFail, "CUDA build", [](F& m) { m.write(kVersion, "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n"); }, without_gpus},
    {"torch reinstalled", "python.reinstalled", kFail, "start anew",
     [](F& m) { m.release("0.1.0"); m.remove(std::string(kSite) + "/torch-2.13.0.dist-info"); m.package(kSite, "torch", "2.14.0", "cp312-cp312-manylinux_2_28_x86_64"); },
     [](F& m) { m.release("0.1.0"); m.remove(std::string(kSite) + "/torch-2.13.0.dist-info"); m.package(kSite, "torch", "2.13.0+cu130"); }},
    {"deepspeed missing", "python.reinstalled", kFail, "not installed", [](F& m) { m.release("0.1.0"); m.remove(std::string(kSite) + "/deepspeed-0.19.8.dist-info"); }, [](F& m) { m.release("0.1.0"); }},
    {"another torch in the home folder", "python.twice", kWarn, "~/.local", [](F& m) { m.package("/root/.local/lib/python3.12/site-packages", "torch", "2.12.0"); },
     [](F& m) { m.package("/root/.local/lib/python3.12/site-packages", "torch", "2.12.0"); m.set("PYTHONNOUSERSITE", "1"); }},
    {"half an uninstallation", "python.twice", kFail, "half", [](F& m) { m.package(kSite, "deepspeed", "0.18.0"); }, [](F& m) { m.package(kSite, "deepspeed_kernels", "0.18.0"); }},
    {"a file edited on disk", "python.files", kFail, "deepspeed/__init__.py", [](F& m) { m.write(std::string(kSite) + "/deepspeed/__init__.py", "x = 1  # mended\n"); },
     [](F& m) { m.write(std::string(kSite) + "/transformers/__init__.py", "x = 1  # mended\n"); }},
    {"an interrupted pip", "python.files", kWarn, "interrupted", [](F& m) { m.folder(std::string(kSite) + "/~orch"); }, [](F& m) { m.folder(std::string(kSite) + "/_orch"); }},
    {"components of another version", "python.components", kWarn, "accelerate 1.14.0",
     [](F& m) { m.release("0.1.0"); m.remove(std::string(kSite) + "/accelerate-1.15.0.dist-info"); m.package(kSite, "accelerate", "1.14.0"); }, [](F& m) { m.release("0.1.0"); }},
    {"a part asked for and not active", "python.stack", kWarn, "asked for",
     [](F& m) { status(m, R"({"parts": {"compile": {"asked_for": true, "active": false, "why_not": "not part of this release"}}})"); },
     [](F& m) { status(m, R"({"parts": {"accl": {"asked_for": true, "active": false, "why_not": "torch has not been imported yet"}}})"); }},
    {"an untested version", "python.stack", kWarn, "not a version",
     [](F& m) { status(m, R"({"versions": {"torch": {"found": "2.14.0", "tested": "2.13", "ok": false}}})"); },
     [](F& m) { status(m, R"({"versions": {"torch": {"found": null, "tested": "2.13", "ok": false}}})"); }},
    {"a fault of autoload", "python.stack", kWarn, "autoload",
     [](F& m) { status(m, R"({"autoload": {"faults": ["ImportError: x"]}})"); }, [](F& m) { status(m, R"({"autoload": {"faults": []}})"); }},
    {"a damaged libtorch_cuda", "nccl.linked", kFail, "no whole ELF", [](F& m) { m.write(std::string(kSite) + "/torch/lib/libtorch_cuda.so", "\x7f" "ELF"); },
     [](F& m) { std::filesystem::create_directories(m.machine.at(std::string(kSite) + "/torch/lib")); std::filesystem::copy_file("/proc/self/exe", m.machine.at(std::string(kSite) + "/torch/lib/libtorch_cuda.so")); }},
    // pytorch#72768, #21399: which NCCL is really in use.
    {"static NCCL cannot be replaced", "nccl.linked", kWarn, "statically",
     [](F& m) { std::filesystem::create_directories(m.machine.at(std::string(kSite) + "/torch/lib")); std::filesystem::copy_file("/proc/self/exe", m.machine.at(std::string(kSite) + "/torch/lib/libtorch_cuda.so")); m.write("/opt/libnccl.so.2", ""); m.set("LD_PRELOAD", "/opt/libnccl.so.2"); },
     [](F& m) { m.write("/opt/libnccl.so.2", ""); m.set("LD_PRELOAD", "/opt/libnccl.so.2"); }},
    {"LD_PRELOAD names nothing", "nccl.path", kFail, "not there", [](F& m) { m.set("LD_PRELOAD", "/opt/libnccl.so.2"); }, [](F& m) { m.set("LD_PRELOAD", "/opt/libjemalloc.so"); }},
    {"an older NCCL in front", "nccl.path", kWarn, "2.18.3",
     [](F& m) { m.package(kSite, "nvidia_nccl_cu13", "2.29.7"); m.write("/opt/nccl/libnccl.so.2.18.3", ""); m.link("/opt/nccl/libnccl.so.2", "libnccl.so.2.18.3"); m.set("LD_LIBRARY_PATH", "/opt/nccl"); },
     [](F& m) { m.package(kSite, "nvidia_nccl_cu13", "2.29.7"); m.write("/opt/nccl/libnccl.so.2.29.9", ""); m.link("/opt/nccl/libnccl.so.2", "libnccl.so.2.29.9"); m.set("LD_LIBRARY_PATH", "/opt/nccl"); }},
    {"two libnccl in a process", "nccl.loaded", kFail, "has loaded two", [](F& m) { m.write("/proc/42/maps", "7f r-xp 0 00:00 1 /a/libnccl.so.2\n7f r-xp 0 00:00 2 /b/libnccl.so.2\n"); },
     [](F& m) { m.write("/proc/42/maps", "7f r-xp 0 00:00 1 /a/libnccl.so.2\n7f rw-p 0 00:00 1 /a/libnccl.so.2\n"); }},
    {"a libnccl replaced under a process", "nccl.loaded", kWarn, "restart", [](F& m) { m.write("/proc/42/maps", "7f r-xp 0 00:00 1 /a/libnccl.so.2 (deleted)\n"); },
     [](F& m) { m.write("/proc/42/maps", "7f r-xp 0 00:00 1 /a/libfoo.so (deleted)\n"); }},
    {"no such process", "nccl.loaded", kFail, "no process 43", [](F& m) { m.machine.process = 43; }, [](F& m) { m.machine.process = 42; m.write("/proc/42/maps", "7f r-xp 0 00:00 1 /a/libc.so\n"); }},
    {"a manifest below CUDA's rule", "image.manifest", kFail, "driver.minimum", [](F& m) { m.release("0.1.0"); m.machine.release->cuda = image::parse_version("13.0"); m.machine.release->driver = image::DriverPolicy{.minimum = *image::parse_version("570"), .data_center_also = {}, .must_upgrade = {}, .note = ""}; },
     [](F& m) { m.release("0.1.0"); m.machine.release->cuda = image::parse_version("13.0"); m.machine.release->driver = image::DriverPolicy{.minimum = *image::parse_version("580.65.06"), .data_center_also = {}, .must_upgrade = {}, .note = ""}; }},
};

std::vector<Fault> all_faults() {
  std::vector<Fault> all;
  for (const auto* group : {&kGpuFaults, &kNetworkFaults, &kHostFaults, &kPythonFaults}) {
    all.insert(all.end(), group->begin(), group->end());
  }
  return all;
}

std::string reported(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    if (finding.status == kWarn || finding.status == kFail) {
      text += fmt::format("  {} {}: {} -> {}\n", status_name(finding.status), finding.id,
                          finding.found, finding.fix);
    }
  }
  return text;
}

class Faults : public testing::TestWithParam<Fault> {};

TEST_P(Faults, AreFound) {
  const Fault& fault = GetParam();
  FakeMachine machine;
  fault.seed(machine);
  std::vector<Finding> findings = examine(machine.machine, {});
  auto found = std::find_if(findings.begin(), findings.end(),
                            [&](const Finding& finding) { return finding.id == fault.id; });
  ASSERT_NE(found, findings.end());
  EXPECT_EQ(status_name(found->status), status_name(fault.status)) << found->found;
  EXPECT_NE((found->found + " " + found->expected + " " + found->fix).find(fault.says),
            std::string::npos)
      << found->found << " | " << found->expected << " | " << found->fix;
  EXPECT_FALSE(found->expected.empty());
  EXPECT_FALSE(found->fix.empty());
}

TEST_P(Faults, HaveAHealthyTwin) {
  const Fault& fault = GetParam();
  FakeMachine machine;
  fault.twin(machine);
  EXPECT_EQ(reported(examine(machine.machine, {})), "") << "twin of: " << fault.name;
}

INSTANTIATE_TEST_SUITE_P(All, Faults, testing::ValuesIn(all_faults()), [](const auto& test) {
  std::string name;
  for (char c : std::string(test.param.id) + " " + test.param.name) {
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
});

TEST(Doctor, ReportsNothingOnAHealthyMachine) {
  FakeMachine machine;
  std::vector<Finding> findings = examine(machine.machine, {});
  EXPECT_EQ(reported(findings), "");
  EXPECT_GE(findings.size(), 50U);
}

TEST(Doctor, SurvivesAMachineWithoutAnyFile) {
  FakeMachine machine;
  std::filesystem::remove_all(machine.machine.root);
  machine.machine.gpus = GpuReport{};
  machine.machine.environment.clear();
  EXPECT_GE(examine(machine.machine, {}).size(), 50U);
}

TEST(Doctor, EveryCheckIsSeeded) {
  std::set<std::string> seeded;
  for (const Fault& fault : all_faults()) {
    seeded.insert(fault.id);
  }
  FakeMachine machine;
  for (const Finding& finding : examine(machine.machine, {})) {
    EXPECT_TRUE(seeded.contains(finding.id)) << finding.id << " has no fault in this file";
  }
  EXPECT_GE(all_faults().size(), 60U);
}

TEST(Doctor, TextFitsATerminalAndHidesControlCharacters) {
  FakeMachine machine;
  several_hosts(machine);
  machine.set("MASTER_ADDR", "\x1b[2Jevil");
  machine.set("NCCL_SOCKET_IFNAME", std::string(500, 'x') + "\x1b");
  machine.set("HF_TOKEN", "hf_verysecretverysecret");
  std::string text = findings_text(examine(machine.machine, {}));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find("verysecret"), std::string::npos);
  EXPECT_NE(text.find("fix:"), std::string::npos);
}

}  // namespace
}  // namespace ljtrain::ljperf
