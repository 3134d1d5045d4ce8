#include "faults.h"

namespace ljtrain::ljperf {

std::vector<Fault> gpu_faults() {
  return {
      // nvidia-docker#400: "driver insufficient" where only no device was passed in.
      {"no device passed in", "gpu.devices", kFail, "--gpus all",
       [](F& m) {
         without_gpus(m);
         m.set("NVIDIA_VISIBLE_DEVICES", "all");
       },
       [](F& m) {
         without_gpus(m);
         m.set("NVIDIA_VISIBLE_DEVICES", "void");
       }},
      {"PyTorch for CUDA, no device", "gpu.devices", kFail, "no /dev/nvidia0",
       [](F& m) {
         without_gpus(m);
         cuda(m, "13.0");
       },
       without_gpus},
      {"no kernel module", "gpu.devices", kFail, "modprobe",
       [](F& m) {
         without_gpus(m);
         m.remove("/proc/driver/nvidia/version");
       },
       [](F& m) {
         without_gpus(m);
         m.remove("/proc/driver/nvidia/version");
         no_bus(m);
       }},
      {"nouveau has the GPU", "gpu.devices", kFail, "nouveau",
       [](F& m) {
         without_gpus(m);
         m.remove("/proc/driver/nvidia/version");
         m.link("/sys/bus/pci/devices/0000:10:00.0/driver", "../../drivers/nouveau");
       },
       [](F& m) {
         without_gpus(m);
         m.remove("/proc/driver/nvidia/version");
         m.link("/sys/bus/pci/devices/0000:10:00.0/driver", "../../drivers/vfio-pci");
       }},
      {"no nvidia-uvm", "gpu.devices", kFail, "nvidia-uvm",
       [](F& m) { m.remove("/dev/nvidia-uvm"); },
       [](F& m) { m.write("/dev/nvidia-uvm-tools", ""); }},
      {"no nvidiactl", "gpu.devices", kFail, "nvidiactl", [](F& m) { m.remove("/dev/nvidiactl"); },
       [](F& m) { m.write("/dev/nvidia-modeset", ""); }},
      {"a device that cannot be opened", "gpu.devices", kFail, "/dev/nvidia5",
       [](F& m) { m.folder("/dev/nvidia5"); }, [](F& m) { m.folder("/dev/nvidia-caps"); }},
      {"no management library", "gpu.nvml", kWarn, "utility",
       [](F& m) { m.machine.gpus = GpuReport{}; }, nothing},
      // faster-whisper#653: CUDA error 803.
      {"driver halves differ, says NVML", "gpu.nvml", kFail, "803",
       [](F& m) {
         m.machine.gpus = {
             .library = true, .error = 18, .why = "error 18", .driver = "", .gpus = {}};
       },
       nothing},
      {"driver not loaded, says NVML", "gpu.nvml", kFail, "modprobe",
       [](F& m) {
         m.machine.gpus = {.library = true, .error = 9, .why = "error 9", .driver = "", .gpus = {}};
       },
       nothing},
      {"libcuda of another version", "gpu.libcuda", kFail, "803",
       [](F& m) {
         m.link("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.575.57.08");
         m.write("/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08", "");
       },
       [](F& m) { m.write("/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08", ""); }},
      // cusignal#398: CUDA error 804.
      {"forward compatibility on a consumer GPU", "gpu.libcuda", kFail, "804",
       [](F& m) {
         m.driver("570.124.06");
         compat(m, "580.65.06");
         consumer(m);
       },
       [](F& m) {
         m.driver("570.124.06");
         compat(m, "580.65.06");
       }},
      {"a cuda-compat older than the driver", "gpu.libcuda", kFail,
       "take the cuda-compat folder off", [](F& m) { compat(m, "575.57.08"); },
       [](F& m) {
         m.driver("535.104.05");
         compat(m, "580.65.06");
       }},
      {"driver one branch too old", "gpu.driver", kFail, "580.65.6 or newer",
       [](F& m) { m.driver("575.57.08"); },
       [](F& m) {
         m.driver("575.57.08");
         cuda(m, "12.9");
       }},
      {"driver below by its last number", "gpu.driver", kFail, "525.60.13",
       [](F& m) {
         m.driver("525.60.9");
         cuda(m, "12.8");
       },
       [](F& m) {
         m.driver("525.105.17");
         cuda(m, "12.8");
       }},
      {"forward compatibility from no target branch", "gpu.driver", kFail, "R575",
       [](F& m) {
         m.driver("575.57.08");
         compat(m, "580.65.06");
       },
       [](F& m) {
         m.driver("570.124.06");
         compat(m, "580.65.06");
       }},
      // DeepSpeed PR#3436: a policy above the rule warns, it does not fail.
      {"policy above the rule", "gpu.driver", kWarn, "the release asks for 580",
       [](F& m) {
         m.driver("570.124.06");
         cuda(m, "12.8");
         m.release("26.05");
         m.machine.release->components.clear();
         m.machine.release->do_not_reinstall.clear();
       },
       [](F& m) {
         cuda(m, "12.8");
         m.release("26.05");
         m.machine.release->components.clear();
         m.machine.release->do_not_reinstall.clear();
       }},
      {"toolkit of another major", "gpu.toolkit", kFail, "CUDA_HOME",
       [](F& m) { m.write("/usr/local/cuda/version.json", R"({"cuda": {"version": "12.8.0"}})"); },
       [](F& m) { m.write("/usr/local/cuda/version.json", R"({"cuda": {"version": "13.2.0"}})"); }},
      {"an index beyond the GPUs", "gpu.visible", kFail, "8 GPUs",
       [](F& m) { m.set("CUDA_VISIBLE_DEVICES", "0,8"); },
       [](F& m) { m.set("CUDA_VISIBLE_DEVICES", "0,7"); }},
      {"a GPU named twice", "gpu.visible", kFail, "twice",
       [](F& m) { m.set("CUDA_VISIBLE_DEVICES", "1,1"); },
       [](F& m) { m.set("CUDA_VISIBLE_DEVICES", "1,0"); }},
      {"every GPU hidden", "gpu.visible", kWarn, "hides",
       [](F& m) { m.set("CUDA_VISIBLE_DEVICES", ""); },
       [](F& m) { m.set("CUDA_VISIBLE_DEVICES", "GPU-8a1b"); }},
      {"a GPU lost", "gpu.lost", kFail, "GPU 3", [](F& m) { gpu(m).lost = true; }, nothing},
      {"GPUs of two models", "gpu.lost", kWarn, "another model",
       [](F& m) { gpu(m).name = "NVIDIA H200"; },
       [](F& m) {
         for (GpuHealth& g : m.machine.gpus.gpus) {
           g.name = "NVIDIA H200";
         }
       }},
      {"uncorrected memory errors", "gpu.ecc", kFail, "2 uncorrected",
       [](F& m) { gpu(m).uncorrected_errors = 2; },
       [](F& m) { gpu(m).uncorrected_errors.reset(); }},
      {"ECC off", "gpu.ecc", kWarn, "ECC is off", [](F& m) { gpu(m).ecc = false; }, consumer},
      {"row remapping failed", "gpu.rows", kFail, "replaced",
       [](F& m) { gpu(m).remap_failed = true; }, [](F& m) { gpu(m).remap_failed.reset(); }},
      {"a row waits", "gpu.rows", kWarn, "reset", [](F& m) { gpu(m).remap_pending = true; },
       [](F& m) { gpu(m).remap_pending.reset(); }},
      {"Xid 79", "gpu.xid", kFail, "fallen off",
       [](F& m) {
         m.write("/dev/kmsg",
                 "4,9,9,-;NVRM: Xid (PCI:0000:13:00): 79, pid=1, GPU has fallen off the bus.\n");
       },
       [](F& m) {
         m.write("/dev/kmsg",
                 "4,9,9,-;NVRM: Xid (PCI:0000:13:00): 31, pid=1, an application's page fault\n");
       }},
      {"Xid 94", "gpu.xid", kWarn, "contained",
       [](F& m) { m.write("/dev/kmsg", "4,9,9,-;NVRM: Xid (PCI:0000:13:00): 94, pid=1\n"); },
       [](F& m) { m.write("/dev/kmsg", "4,9,9,-;NVRM: Xid (PCI:0000:13:00): 13, pid=94\n"); }},
      {"throttled by hardware", "gpu.throttling", kFail, "too hot",
       [](F& m) { gpu(m).throttle_reasons = 0x40; }, [](F& m) { gpu(m).throttle_reasons = 0x4; }},
      {"throttled by software for heat", "gpu.throttling", kWarn, "cooling",
       [](F& m) { gpu(m).throttle_reasons = 0x20; }, [](F& m) { gpu(m).throttle_reasons = 0x2; }},
      {"an NVLink down", "gpu.nvlink", kFail, "17 of 18", [](F& m) { gpu(m).links_active = 17; },
       [](F& m) {
         for (GpuHealth& g : m.machine.gpus.gpus) {
           g.links_active = 12;
         }
       }},
      {"PCIe at half width", "gpu.pcie", kWarn, "x8", [](F& m) { gpu(m).pcie_width = 8; },
       [](F& m) {
         gpu(m).pcie_width = 8;
         gpu(m).pcie_width_most = 8;
       }},
      {"no peer access", "gpu.peers", kWarn, "GPU 3 cannot reach GPU 0",
       [](F& m) { gpu(m).peers_without_access = {0}; },
       [](F& m) {
         consumer(m);
         gpu(m).peers_without_access = {0};
       }},
      {"persistence off", "gpu.persistence", kWarn, "persistenced",
       [](F& m) { gpu(m).persistence = false; },
       [](F& m) {
         consumer(m);
         gpu(m).persistence = false;
       }},
      {"MIG on", "gpu.mig", kWarn, "slice", [](F& m) { gpu(m).mig = true; },
       [](F& m) {
         gpu(m).mig = true;
         m.machine.task = Purpose::kInference;
       }},
      {"compute mode prohibited", "gpu.mode", kFail, "DEFAULT",
       [](F& m) { gpu(m).prohibited = true; }, [](F& m) { gpu(m).prohibited.reset(); }},
  };
}

}  // namespace ljtrain::ljperf
