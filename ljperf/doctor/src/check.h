// What the files of checks share: one function a check, and short ways to answer.
#pragma once

#include <string>
#include <utility>

#include "doctor/finding.h"
#include "doctor/machine.h"

namespace ljtrain::ljperf {

inline Finding ok(std::string found, std::string expected = "") {
  return {"", Status::kOk, std::move(found), std::move(expected), ""};
}
inline Finding skip(std::string why) { return {"", Status::kSkip, std::move(why), "", ""}; }
inline Finding warn(std::string found, std::string expected, std::string fix) {
  return {"", Status::kWarn, std::move(found), std::move(expected), std::move(fix)};
}
inline Finding fail(std::string found, std::string expected, std::string fix) {
  return {"", Status::kFail, std::move(found), std::move(expected), std::move(fix)};
}

// gpu_devices.cc, gpu_driver.cc, gpu_health.cc
Finding check_gpu_devices(const Machine& machine);
Finding check_gpu_nvml(const Machine& machine);
Finding check_gpu_libcuda(const Machine& machine);
Finding check_gpu_driver(const Machine& machine);
Finding check_gpu_toolkit(const Machine& machine);
Finding check_gpu_visible(const Machine& machine);
Finding check_gpu_lost(const Machine& machine);
Finding check_gpu_ecc(const Machine& machine);
Finding check_gpu_rows(const Machine& machine);
Finding check_gpu_xid(const Machine& machine);
Finding check_gpu_throttling(const Machine& machine);
Finding check_gpu_nvlink(const Machine& machine);
Finding check_gpu_pcie(const Machine& machine);
Finding check_gpu_peers(const Machine& machine);
Finding check_gpu_persistence(const Machine& machine);
Finding check_gpu_mig(const Machine& machine);
Finding check_gpu_mode(const Machine& machine);

// network.cc, rendezvous.cc
Finding check_network_interface(const Machine& machine);
Finding check_network_rule(const Machine& machine);
Finding check_network_gloo(const Machine& machine);
Finding check_network_rdma(const Machine& machine);
Finding check_network_ranks(const Machine& machine);
Finding check_network_master(const Machine& machine);
Finding check_network_port(const Machine& machine);
Finding check_network_hosts(const Machine& machine);

// memory.cc, limits.cc, host.cc
Finding check_memory_shm(const Machine& machine);
Finding check_memory_shm_free(const Machine& machine);
Finding check_memory_locked(const Machine& machine);
Finding check_memory_cgroup(const Machine& machine);
Finding check_memory_huge_pages(const Machine& machine);
Finding check_memory_reserved(const Machine& machine);
Finding check_limits_files(const Machine& machine);
Finding check_limits_processes(const Machine& machine);
Finding check_limits_stack(const Machine& machine);
Finding check_limits_address_space(const Machine& machine);
Finding check_limits_file_size(const Machine& machine);
Finding check_limits_cpu_time(const Machine& machine);
Finding check_limits_cpu_quota(const Machine& machine);
Finding check_host_numa(const Machine& machine);
Finding check_host_governor(const Machine& machine);
Finding check_host_ipc(const Machine& machine);
Finding check_host_ptrace(const Machine& machine);
Finding check_host_clock(const Machine& machine);

// components.cc, nccl_library.cc, stack.cc
Finding check_python_torch(const Machine& machine);
Finding check_python_reinstalled(const Machine& machine);
Finding check_python_twice(const Machine& machine);
Finding check_python_files(const Machine& machine);
Finding check_python_components(const Machine& machine);
Finding check_python_stack(const Machine& machine);
Finding check_nccl_linked(const Machine& machine);
Finding check_nccl_path(const Machine& machine);
Finding check_nccl_loaded(const Machine& machine);
Finding check_image_manifest(const Machine& machine);

}  // namespace ljtrain::ljperf
