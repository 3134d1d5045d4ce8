#include "faults.h"

namespace ljtrain::ljperf {

std::vector<Fault> python_faults() {
  return {
      {"a CPU build beside GPUs", "python.torch", kFail, "CUDA build",
       [](F& m) { m.write(kVersion, "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n"); },
       without_gpus},
      {"torch reinstalled", "python.reinstalled", kFail, "start anew",
       [](F& m) {
         m.release("0.1.0");
         m.remove(std::string(kSite) + "/torch-2.13.0.dist-info");
         m.package(kSite, "torch", "2.14.0", "cp312-cp312-manylinux_2_28_x86_64");
       },
       [](F& m) {
         m.release("0.1.0");
         m.remove(std::string(kSite) + "/torch-2.13.0.dist-info");
         m.package(kSite, "torch", "2.13.0+cu130");
       }},
      {"deepspeed missing", "python.reinstalled", kFail, "not installed",
       [](F& m) {
         m.release("0.1.0");
         m.remove(std::string(kSite) + "/deepspeed-0.19.8.dist-info");
       },
       [](F& m) { m.release("0.1.0"); }},
      {"another torch in the home folder", "python.twice", kWarn, "~/.local",
       [](F& m) {
         m.package("/home/trainer/.local/lib/python3.12/site-packages", "torch", "2.12.0");
       },
       [](F& m) {
         m.package("/home/trainer/.local/lib/python3.12/site-packages", "torch", "2.12.0");
         m.set("PYTHONNOUSERSITE", "1");
       }},
      {"half an uninstallation", "python.twice", kFail, "half",
       [](F& m) { m.package(kSite, "deepspeed", "0.18.0"); },
       [](F& m) { m.package(kSite, "deepspeed_kernels", "0.18.0"); }},
      {"a file edited on disk", "python.files", kFail, "deepspeed/__init__.py",
       [](F& m) { m.write(std::string(kSite) + "/deepspeed/__init__.py", "x = 1  # mended\n"); },
       [](F& m) {
         m.write(std::string(kSite) + "/transformers/__init__.py", "x = 1  # mended\n");
       }},
      {"an interrupted pip", "python.files", kWarn, "interrupted",
       [](F& m) { m.folder(std::string(kSite) + "/~orch"); },
       [](F& m) { m.folder(std::string(kSite) + "/_orch"); }},
      {"components of another version", "python.components", kWarn, "accelerate 1.14.0",
       [](F& m) {
         m.release("0.1.0");
         m.remove(std::string(kSite) + "/accelerate-1.15.0.dist-info");
         m.package(kSite, "accelerate", "1.14.0");
       },
       [](F& m) { m.release("0.1.0"); }},
      {"a part asked for and not active", "python.stack", kWarn, "asked for",
       [](F& m) {
         status(
             m,
             R"({"parts": {"compile": {"asked_for": true, "active": false, "why_not": "not part of this release"}}})");
       },
       [](F& m) {
         status(
             m,
             R"({"parts": {"accl": {"asked_for": true, "active": false, "why_not": "torch has not been imported yet"}}})");
       }},
      {"an untested version", "python.stack", kWarn, "not a version",
       [](F& m) {
         status(m,
                R"({"versions": {"torch": {"found": "2.14.0", "tested": "2.13", "ok": false}}})");
       },
       [](F& m) {
         status(m, R"({"versions": {"torch": {"found": null, "tested": "2.13", "ok": false}}})");
       }},
      {"a fault of autoload", "python.stack", kWarn, "autoload",
       [](F& m) { status(m, R"({"autoload": {"faults": ["ImportError: x"]}})"); },
       [](F& m) { status(m, R"({"autoload": {"faults": []}})"); }},
      {"a damaged libtorch_cuda", "nccl.linked", kFail, "no whole ELF",
       [](F& m) {
         m.write(std::string(kSite) + "/torch/lib/libtorch_cuda.so",
                 "\x7f"
                 "ELF");
       },
       [](F& m) {
         std::filesystem::create_directories(m.machine.at(std::string(kSite) + "/torch/lib"));
         std::filesystem::copy_file(
             "/proc/self/exe", m.machine.at(std::string(kSite) + "/torch/lib/libtorch_cuda.so"));
       }},
      // pytorch#72768, #21399: which NCCL is really in use.
      {"static NCCL cannot be replaced", "nccl.linked", kWarn, "statically",
       [](F& m) {
         std::filesystem::create_directories(m.machine.at(std::string(kSite) + "/torch/lib"));
         std::filesystem::copy_file(
             "/proc/self/exe", m.machine.at(std::string(kSite) + "/torch/lib/libtorch_cuda.so"));
         m.write("/opt/libnccl.so.2", "");
         m.set("LD_PRELOAD", "/opt/libnccl.so.2");
       },
       [](F& m) {
         m.write("/opt/libnccl.so.2", "");
         m.set("LD_PRELOAD", "/opt/libnccl.so.2");
       }},
      {"LD_PRELOAD names nothing", "nccl.path", kFail, "not there",
       [](F& m) { m.set("LD_PRELOAD", "/opt/libnccl.so.2"); },
       [](F& m) { m.set("LD_PRELOAD", "/opt/libjemalloc.so"); }},
      {"an older NCCL in front", "nccl.path", kWarn, "2.18.3",
       [](F& m) {
         m.package(kSite, "nvidia_nccl_cu13", "2.29.7");
         m.write("/opt/nccl/libnccl.so.2.18.3", "");
         m.link("/opt/nccl/libnccl.so.2", "libnccl.so.2.18.3");
         m.set("LD_LIBRARY_PATH", "/opt/nccl");
       },
       [](F& m) {
         m.package(kSite, "nvidia_nccl_cu13", "2.29.7");
         m.write("/opt/nccl/libnccl.so.2.29.9", "");
         m.link("/opt/nccl/libnccl.so.2", "libnccl.so.2.29.9");
         m.set("LD_LIBRARY_PATH", "/opt/nccl");
       }},
      {"two libnccl in a process", "nccl.loaded", kFail, "has loaded two",
       [](F& m) {
         m.write("/proc/42/maps",
                 "7f r-xp 0 00:00 1 /a/libnccl.so.2\n7f r-xp 0 00:00 2 /b/libnccl.so.2\n");
       },
       [](F& m) {
         m.write("/proc/42/maps",
                 "7f r-xp 0 00:00 1 /a/libnccl.so.2\n7f rw-p 0 00:00 1 /a/libnccl.so.2\n");
       }},
      {"a libnccl replaced under a process", "nccl.loaded", kWarn, "restart",
       [](F& m) { m.write("/proc/42/maps", "7f r-xp 0 00:00 1 /a/libnccl.so.2 (deleted)\n"); },
       [](F& m) { m.write("/proc/42/maps", "7f r-xp 0 00:00 1 /a/libfoo.so (deleted)\n"); }},
      {"no such process", "nccl.loaded", kFail, "no process 43",
       [](F& m) { m.machine.process = 43; },
       [](F& m) {
         m.machine.process = 42;
         m.write("/proc/42/maps", "7f r-xp 0 00:00 1 /a/libc.so\n");
       }},
      {"a manifest below CUDA's rule", "image.manifest", kFail, "driver.minimum",
       [](F& m) {
         m.release("0.1.0");
         m.machine.release->cuda = image::parse_version("13.0");
         m.machine.release->driver = image::DriverPolicy{.minimum = *image::parse_version("570"),
                                                         .data_center_also = {},
                                                         .must_upgrade = {},
                                                         .note = ""};
       },
       [](F& m) {
         m.release("0.1.0");
         m.machine.release->cuda = image::parse_version("13.0");
         m.machine.release->driver =
             image::DriverPolicy{.minimum = *image::parse_version("580.65.06"),
                                 .data_center_also = {},
                                 .must_upgrade = {},
                                 .note = ""};
       }},
      {"another torch in lib64", "python.twice", kWarn, "lib64",
       [](F& m) { m.package("/usr/lib64/python3.12/site-packages", "torch", "2.12.0"); },
       [](F& m) { m.link("/usr/lib64", "lib"); }},
      {"a file of torch gone", "python.files", kFail, "torch/__init__.py",
       [](F& m) { m.remove(std::string(kSite) + "/torch/__init__.py"); },
       [](F& m) {
         m.write(
             std::string(kSite) + "/torch-2.13.0.dist-info/RECORD",
             "torch/__init__.py,sha256=x,6\r\ntorch-2.13.0.dist-info/RECORD,,\r\ntorch/__pycache__/"
             "__init__.cpython-312.pyc,sha256=x,9\n");
       }},
  };
}

}  // namespace ljtrain::ljperf
