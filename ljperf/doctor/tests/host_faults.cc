#include "faults.h"

namespace ljtrain::ljperf {

std::vector<Fault> host_faults() {
  return {
      // NVIDIA/nccl#342; kubernetes#28272.
      {"/dev/shm of 64 MiB", "memory.shm", kFail, "--ipc=host",
       [](F& m) { shm(m, "rw,size=65536k"); }, [](F& m) { shm(m, "rw,size=1048576k"); }},
      {"/dev/shm of 512 MiB", "memory.shm", kWarn, "512", [](F& m) { shm(m, "rw,size=524288k"); },
       [](F& m) {
         shm(m, "rw,size=524288k");
         m.machine.task = Purpose::kInference;
       }},
      {"/dev/shm on a disk", "memory.shm", kWarn, "evicted", [](F& m) { shm(m, "rw", "ext4"); },
       [](F& m) { shm(m, "rw"); }},
      {"no /dev/shm", "memory.shm", kFail, "not mounted",
       [](F& m) { m.write("/proc/self/mountinfo", "1 1 0:1 / / rw - ext4 x rw\n"); }, nothing},
      {"/dev/shm full", "memory.shm-free", kWarn, "left_over",
       [](F& m) {
         shm(m, "rw,size=1g");
         std::ofstream(m.machine.at("/dev/shm/left_over"));
         std::filesystem::resize_file(m.machine.at("/dev/shm/left_over"), 1000u << 20);
       },
       [](F& m) {
         shm(m, "rw,size=1g");
         std::ofstream(m.machine.at("/dev/shm/in_use"));
         std::filesystem::resize_file(m.machine.at("/dev/shm/in_use"), 500u << 20);
       }},
      {"memlock too small for RDMA", "memory.locked", kFail, "memlock=-1",
       [](F& m) {
         rdma(m);
         limit(m, "Max locked memory", "8388608");
       },
       [](F& m) { limit(m, "Max locked memory", "8388608"); }},
      {"cgroup v2 nearly full", "memory.cgroup", kWarn, "in use",
       [](F& m) {
         m.write("/sys/fs/cgroup/memory.max", "8589934592\n");
         m.write("/sys/fs/cgroup/memory.current", "8500000000\n");
       },
       [](F& m) {
         m.write("/sys/fs/cgroup/memory.max", "8589934592\n");
         m.write("/sys/fs/cgroup/memory.current", "8500000000\n");
         m.write("/sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 6000000000\n");
       }},
      {"cgroup v1 limit of 1 GiB", "memory.cgroup", kWarn, "1.00 GiB",
       [](F& m) {
         m.write("/proc/self/cgroup", "4:memory:/a\n");
         m.write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
       },
       [](F& m) {
         m.write("/proc/self/cgroup", "4:memory:/a\n");
         m.write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
       }},
      {"no huge pages", "memory.huge-pages", kWarn, "madvise",
       [](F& m) {
         m.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
       },
       [](F& m) {
         m.write("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
       }},
      {"half the memory reserved", "memory.reserved", kWarn, "nr_hugepages",
       [](F& m) {
         m.edit("/proc/meminfo", "HugePages_Free:        0", "HugePages_Free:    32768");
       },
       [](F& m) {
         m.edit("/proc/meminfo", "HugePages_Free:        0", "HugePages_Free:     1024");
       }},
      {"few open files", "limits.files", kWarn, "4096",
       [](F& m) { limit(m, "Max open files", "1024"); },
       [](F& m) { limit(m, "Max open files", "4096"); }},
      {"hardly any open files", "limits.files", kFail, "ulimit -n: 128",
       [](F& m) { limit(m, "Max open files", "128"); },
       [](F& m) {
         limit(m, "Max open files", "1024");
         m.set("LOCAL_WORLD_SIZE", "1");
       }},
      {"few processes", "limits.processes", kFail, "ulimit -u",
       [](F& m) { limit(m, "Max processes", "1024"); },
       [](F& m) { limit(m, "Max processes", "65536"); }},
      {"pids.max of cgroup v2", "limits.processes", kFail, "pids.max: 1024",
       [](F& m) { m.write("/sys/fs/cgroup/pids.max", "1024\n"); },
       [](F& m) { m.write("/sys/fs/cgroup/pids.max", "38000\n"); }},
      {"pids.max of cgroup v1", "limits.processes", kFail, "pids.max: 100",
       [](F& m) {
         m.write("/proc/self/cgroup", "8:pids:/pod\n0::/\n");
         m.write("/sys/fs/cgroup/pids/pod/pids.max", "100\n");
       },
       [](F& m) {
         m.write("/proc/self/cgroup", "8:pids:/pod\n0::/\n");
         m.write("/sys/fs/cgroup/pids/pod/pids.max", "max\n");
       }},
      {"a small stack", "limits.stack", kFail, "ulimit -s",
       [](F& m) { limit(m, "Max stack size", "65536"); },
       [](F& m) { limit(m, "Max stack size", "unlimited"); }},
      {"limited address space", "limits.address-space", kFail, "CUDA",
       [](F& m) { limit(m, "Max address space", "68719476736"); }, nothing},
      {"limited files", "limits.file-size", kWarn, "checkpoints",
       [](F& m) { limit(m, "Max file size", "1073741824"); },
       [](F& m) { limit(m, "Max file size", "1099511627776"); }},
      {"limited CPU time", "limits.cpu-time", kWarn, "compute node",
       [](F& m) { limit(m, "Max cpu time", "3600"); }, nothing},
      {"CPU quota below the threads", "limits.cpu-quota", kWarn, "OMP_NUM_THREADS=4",
       [](F& m) { m.write("/sys/fs/cgroup/cpu.max", "400000 100000\n"); },
       [](F& m) {
         m.write("/sys/fs/cgroup/cpu.max", "400000 100000\n");
         m.set("OMP_NUM_THREADS", "4");
       }},
      {"NUMA balancing", "host.numa", kWarn, "numa_balancing=0",
       [](F& m) { m.write("/proc/sys/kernel/numa_balancing", "1\n"); },
       [](F& m) {
         m.write("/proc/sys/kernel/numa_balancing", "1\n");
         m.write("/sys/devices/system/node/online", "0\n");
       }},
      {"powersave that stays low", "host.governor", kWarn, "cpupower",
       [](F& m) {
         m.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
         m.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
       },
       [](F& m) {
         m.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
       }},
      {"ranks in containers of their own", "host.ipc", kWarn, "--ipc=host",
       [](F& m) {
         own_namespaces(m);
         m.set("LOCAL_WORLD_SIZE", "2");
         rank_process(m, 7, 0);
       },
       [](F& m) {
         own_namespaces(m);
         m.set("LOCAL_WORLD_SIZE", "2");
         rank_process(m, 7, 0);
         rank_process(m, 8, 1);
       }},
      {"ptrace for nobody", "host.ptrace", kWarn, "py-spy",
       [](F& m) { m.write("/proc/sys/kernel/yama/ptrace_scope", "2\n"); },
       [](F& m) { m.write("/proc/sys/kernel/yama/ptrace_scope", "0\n"); }},
      {"a clock of 1970", "host.clock", kFail, "past", [](F& m) { m.machine.now = 86400; },
       nothing},
      {"clocks adrift", "host.clock", kWarn, "makestep",
       [](F& m) {
         several_hosts(m);
         m.machine.clock = [] { return ClockState{true, 2.0}; };
       },
       [](F& m) { m.machine.clock = [] { return ClockState{true, 2.0}; }; }},
      {"no clock service", "host.clock", kWarn, "chronyd",
       [](F& m) {
         several_hosts(m);
         m.machine.clock = [] { return ClockState{false, 0}; };
       },
       [](F& m) { m.machine.clock = [] { return ClockState{false, 0}; }; }},
  };
}

}  // namespace ljtrain::ljperf
