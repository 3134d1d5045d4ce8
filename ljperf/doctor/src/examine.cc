#include "doctor/examine.h"

#include <algorithm>
#include <array>

#include "check.h"
#include "config_check.h"

namespace ljtrain::ljperf {
namespace {

enum When { kAlways, kNotQuick };
enum For { kBoth, kTrainingOnly };

struct CheckRow {
  std::string_view id;
  Finding (*run)(const Machine&);
  When when;
  For task;
};

// Adding a check: one row here, one function in the file of its group, and a fault with its healthy
// twin in tests/faults_*.cc.
constexpr std::array kChecks{
    CheckRow{"image.manifest", check_image_manifest, kAlways, kBoth},
    CheckRow{"gpu.devices", check_gpu_devices, kAlways, kBoth},
    CheckRow{"gpu.nvml", check_gpu_nvml, kAlways, kBoth},
    CheckRow{"gpu.libcuda", check_gpu_libcuda, kAlways, kBoth},
    CheckRow{"gpu.driver", check_gpu_driver, kAlways, kBoth},
    CheckRow{"gpu.toolkit", check_gpu_toolkit, kAlways, kBoth},
    CheckRow{"gpu.visible", check_gpu_visible, kAlways, kBoth},
    CheckRow{"gpu.lost", check_gpu_lost, kAlways, kBoth},
    CheckRow{"gpu.ecc", check_gpu_ecc, kAlways, kBoth},
    CheckRow{"gpu.rows", check_gpu_rows, kAlways, kBoth},
    CheckRow{"gpu.xid", check_gpu_xid, kAlways, kBoth},
    CheckRow{"gpu.throttling", check_gpu_throttling, kAlways, kBoth},
    CheckRow{"gpu.nvlink", check_gpu_nvlink, kAlways, kBoth},
    CheckRow{"gpu.pcie", check_gpu_pcie, kAlways, kBoth},
    CheckRow{"gpu.peers", check_gpu_peers, kAlways, kBoth},
    CheckRow{"gpu.persistence", check_gpu_persistence, kAlways, kBoth},
    CheckRow{"gpu.mig", check_gpu_mig, kAlways, kBoth},
    CheckRow{"gpu.mode", check_gpu_mode, kAlways, kBoth},
    CheckRow{"network.interface", check_network_interface, kAlways, kBoth},
    CheckRow{"network.rule", check_network_rule, kAlways, kBoth},
    CheckRow{"network.gloo", check_network_gloo, kAlways, kBoth},
    CheckRow{"network.rdma", check_network_rdma, kAlways, kBoth},
    CheckRow{"network.ranks", check_network_ranks, kAlways, kTrainingOnly},
    CheckRow{"network.master", check_network_master, kNotQuick, kTrainingOnly},
    CheckRow{"network.port", check_network_port, kAlways, kTrainingOnly},
    CheckRow{"network.hosts", check_network_hosts, kNotQuick, kBoth},
    CheckRow{"memory.shm", check_memory_shm, kAlways, kBoth},
    CheckRow{"memory.shm-free", check_memory_shm_free, kAlways, kBoth},
    CheckRow{"memory.locked", check_memory_locked, kAlways, kBoth},
    CheckRow{"memory.cgroup", check_memory_cgroup, kAlways, kBoth},
    CheckRow{"memory.huge-pages", check_memory_huge_pages, kAlways, kBoth},
    CheckRow{"memory.reserved", check_memory_reserved, kAlways, kBoth},
    CheckRow{"limits.files", check_limits_files, kAlways, kBoth},
    CheckRow{"limits.processes", check_limits_processes, kAlways, kBoth},
    CheckRow{"limits.stack", check_limits_stack, kAlways, kBoth},
    CheckRow{"limits.address-space", check_limits_address_space, kAlways, kBoth},
    CheckRow{"limits.file-size", check_limits_file_size, kAlways, kTrainingOnly},
    CheckRow{"limits.cpu-time", check_limits_cpu_time, kAlways, kBoth},
    CheckRow{"limits.cpu-quota", check_limits_cpu_quota, kAlways, kBoth},
    CheckRow{"host.numa", check_host_numa, kAlways, kBoth},
    CheckRow{"host.governor", check_host_governor, kAlways, kBoth},
    CheckRow{"host.ipc", check_host_ipc, kNotQuick, kBoth},
    CheckRow{"host.ptrace", check_host_ptrace, kAlways, kBoth},
    CheckRow{"host.clock", check_host_clock, kAlways, kBoth},
    CheckRow{"python.torch", check_python_torch, kAlways, kBoth},
    CheckRow{"python.reinstalled", check_python_reinstalled, kAlways, kBoth},
    CheckRow{"python.twice", check_python_twice, kAlways, kBoth},
    CheckRow{"python.files", check_python_files, kNotQuick, kBoth},
    CheckRow{"python.components", check_python_components, kAlways, kBoth},
    CheckRow{"python.stack", check_python_stack, kNotQuick, kBoth},
    CheckRow{"nccl.linked", check_nccl_linked, kAlways, kBoth},
    CheckRow{"nccl.path", check_nccl_path, kAlways, kBoth},
    CheckRow{"nccl.loaded", check_nccl_loaded, kNotQuick, kBoth},
};

bool is_selected(std::string_view id, const std::vector<std::string>& only) {
  return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& name) {
           return id == name || (id.starts_with(name) && id[name.size()] == '.');
         });
}

}  // namespace

std::string_view status_name(Status status) {
  switch (status) {
    case Status::kOk:
      return "ok";
    case Status::kWarn:
      return "warn";
    case Status::kFail:
      return "fail";
    case Status::kSkip:
      return "skip";
  }
  return "";
}

std::vector<Finding> examine(const Machine& machine, const Selection& selection) {
  std::vector<Finding> findings;
  for (const CheckRow& check : kChecks) {
    if (!is_selected(check.id, selection.only)) {
      continue;
    }
    Finding finding = selection.quick && check.when == kNotQuick ? skip("not with --quick")
                      : check.task == kTrainingOnly && machine.task != Purpose::kTraining
                          ? skip("for training only")
                          : check.run(machine);
    finding.id = check.id;
    findings.push_back(std::move(finding));
  }
  if (is_selected("config.files", selection.only)) {
    for (Finding& finding : check_configuration(machine)) {
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

}  // namespace ljtrain::ljperf
