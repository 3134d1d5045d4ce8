#include "fake_machine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace ljtrain::ljperf {
namespace {

constexpr const char* kSite = "/usr/lib/python3.12/site-packages";
constexpr const char* kLibraries = "/usr/lib/x86_64-linux-gnu";

constexpr const char* kLimits =
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max cpu time              unlimited            unlimited            seconds   \n"
    "Max file size             unlimited            unlimited            bytes     \n"
    "Max stack size            8388608              unlimited            bytes     \n"
    "Max processes             1000000              1000000              processes \n"
    "Max open files            1048576              1048576              files     \n"
    "Max locked memory         unlimited            unlimited            bytes     \n"
    "Max address space         unlimited            unlimited            bytes     \n";

}  // namespace

FakeMachine::FakeMachine() {
  // A hundred small files a machine: in memory where that can be.
  std::filesystem::path place =
      ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path();
  std::string pattern = (place / "ljtrain_doctor_XXXXXX").string();
  folder_ = ::mkdtemp(pattern.data());
  machine.root = folder_;
  machine.now = 1'790'000'000;
  machine.clock = [] { return ClockState{true, 0.001}; };
  machine.resolve = [](const std::string& host) {
    return host == "node1" ? std::vector<std::string>{"10.0.0.1"} : std::vector<std::string>{};
  };
  machine.reach = [](const std::string&, const std::string&) { return std::string(); };
  machine.stack_status = [](const std::filesystem::path&) {
    return base::Json::parse(R"({"ljtrain": "0.1.0", "autoload": {"faults": []},
      "parts": {"accl": {"asked_for": false, "active": false, "why_not": "LJTRAIN_ACCL is not set"}},
      "versions": {"torch": {"found": "2.13.0", "tested": "2.13", "ok": true}}})");
  };
  machine.environment = {{"PATH", "/usr/bin"}, {"HOME", "/home/trainer"}};
  for (int i = 0; i < 8; ++i) {
    write(fmt::format("/dev/nvidia{}", i), "");
    std::string device = fmt::format("/sys/bus/pci/devices/0000:{:02x}:00.0", 0x10 + i);
    write(device + "/vendor", "0x10de\n");
    write(device + "/class", "0x030200\n");
    machine.gpus.gpus.push_back({.name = "NVIDIA H100 80GB HBM3",
                                 .bus_id = "",
                                 .brand = 14,
                                 .ecc = true,
                                 .uncorrected_errors = 0,
                                 .remap_pending = false,
                                 .remap_failed = false,
                                 .throttle_reasons = 1,
                                 .persistence = true,
                                 .mig = false,
                                 .prohibited = false,
                                 .pcie_width = 16,
                                 .pcie_width_most = 16,
                                 .links_active = 18,
                                 .links_down = 0,
                                 .peers_without_access = {}});
  }
  machine.gpus.library = true;
  write("/dev/nvidiactl", "");
  write("/dev/nvidia-uvm", "");
  write("/dev/kmsg", "6,1,1,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n");
  driver("580.65.06");
  interface("lo", 1);
  interface("eth0", 2);
  write("/proc/self/mountinfo",
        "30 20 0:25 / /dev/shm rw,nosuid,nodev - tmpfs shm rw,size=67108864k\n");
  folder("/dev/shm");
  write("/proc/meminfo",
        "MemTotal:       134217728 kB\nHugePages_Free:        0\nHugepagesize:       2048 kB\n");
  write("/proc/self/limits", kLimits);
  write("/proc/self/cgroup", "0::/\n");
  write("/proc/self/status", "Name:\tljperf\nCpus_allowed_list:\t0-15\n");
  write("/sys/fs/cgroup/memory.max", "max\n");
  write("/sys/fs/cgroup/pids.max", "max\n");
  write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  link("/proc/self/ns/ipc", "ipc:[4026531839]");
  link("/proc/self/ns/pid", "pid:[4026531836]");
  write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write("/proc/sys/kernel/numa_balancing", "0\n");
  write("/sys/devices/system/node/online", "0-1\n");
  write("/proc/sys/kernel/yama/ptrace_scope", "1\n");
  write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
  write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
  write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 thishost\n10.0.0.9 master\n");
  write("/etc/os-release", "VERSION_ID=\"24.04\"\n");
  write("/usr/bin/python3.12", "");
  link("/usr/bin/python3", "python3.12");
  package(kSite, "torch", "2.13.0");
  package(kSite, "deepspeed", "0.19.8");
  package(kSite, "transformers", "5.24.0");
  package(kSite, "accelerate", "1.15.0");
  package(kSite, "ljtrain", "0.1.0");
  write(std::string(kSite) + "/torch/version.py",
        "__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\n");
}

FakeMachine::~FakeMachine() {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

void FakeMachine::write(std::string_view path, std::string_view text) const {
  std::filesystem::path file = machine.at(path);
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

void FakeMachine::remove(std::string_view path) const {
  ASSERT_GT(std::filesystem::remove_all(machine.at(path)), 0U) << path;
}

void FakeMachine::link(std::string_view path, std::string_view target) const {
  std::filesystem::path file = machine.at(path);
  std::filesystem::create_directories(file.parent_path());
  std::filesystem::remove(file);
  std::filesystem::create_symlink(target, file);
}

void FakeMachine::folder(std::string_view path) const {
  std::filesystem::remove_all(machine.at(path));
  std::filesystem::create_directories(machine.at(path));
}

void FakeMachine::edit(std::string_view path, std::string_view what, std::string_view with) const {
  std::string text = machine.read(path).value_or("");
  std::size_t at = text.find(what);
  ASSERT_NE(at, std::string::npos) << path << ": " << what;
  write(path, text.replace(at, what.size(), with));
}

void FakeMachine::set(const std::string& name, const std::string& value) {
  machine.environment[name] = value;
}

void FakeMachine::interface(const std::string& name, int index, bool up, bool address) const {
  std::string sys = "/sys/class/net/" + name;
  write(sys + "/ifindex", fmt::format("{}\n", index));
  write(sys + "/flags", up ? "0x1003\n" : "0x1002\n");
  write(sys + "/operstate", name == "lo" ? "unknown\n" : up ? "up\n" : "down\n");
  if (address && name != "lo") {
    std::string routes = machine.read("/proc/net/route").value_or("Iface\tDestination");
    write("/proc/net/route", routes + "\n" + name + "\t00000000\n");
  }
}

void FakeMachine::package(const std::string& site, const std::string& name,
                          const std::string& version, const std::string& tag) const {
  std::string info = fmt::format("{}/{}-{}.dist-info", site, name, version);
  write(info + "/INSTALLER", "pip\n");
  write(info + "/WHEEL", "Wheel-Version: 1.0\nTag: " + tag + "\n");
  write(site + "/" + name + "/__init__.py", "x = 1\n");
  write(info + "/RECORD", name + "/__init__.py,sha256=x,6\n");
}

void FakeMachine::release(const std::string& name) { machine.release = image::find_release(name); }

void FakeMachine::driver(const std::string& version) {
  machine.gpus.driver = version;
  write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " + version + "  Sun Jul\n");
  std::error_code error;
  std::filesystem::create_directories(machine.at(kLibraries));
  std::string library = "libcuda.so." + version;
  write(std::string(kLibraries) + "/" + library, "");
  link(std::string(kLibraries) + "/libcuda.so.1", library);
}

}  // namespace ljtrain::ljperf
