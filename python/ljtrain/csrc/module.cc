// The Python module ljtrain._C: the measuring allocator, the phase clock, the timing of
// collectives, and the c10d backend accl.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/headeronly/version.h>

#include <cstdint>
#include <optional>
#include <string>

#include "accl_bindings.h"
#include "base/memory_limits.h"
#include "communication.h"
#include "measuring_allocator.h"
#include "phase_clock.h"

namespace py = pybind11;

namespace ljtrain {
namespace {

// c10d's classes have no stable ABI (a new virtual function moves all that follow), so this module
// serves the minor version it was compiled for and no other.
void check_torch_version() {
  const std::string built =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  const auto found = py::module_::import("torch").attr("__version__").cast<std::string>();
  if (!found.starts_with(built)) {
    throw py::import_error("ljtrain._C was built for PyTorch " TORCH_VERSION " and this is " +
                           found + ": build ljtrain again with this PyTorch installed");
  }
}

py::dict allocator_statistics() {
  const AllocatorStatistics statistics = MeasuringAllocator::instance().statistics();
  py::dict result;
  result["current_bytes"] = statistics.current_bytes;
  result["peak_bytes"] = statistics.peak_bytes;
  result["allocations"] = statistics.allocations;
  result["refused"] = statistics.refused;
  const std::int64_t limit = MeasuringAllocator::instance().limit();
  if (limit == MeasuringAllocator::kNoLimit) {
    result["limit_bytes"] = py::none();
  } else {
    result["limit_bytes"] = limit;
  }
  return result;
}

void allocator_set_limit(std::optional<std::int64_t> bytes) {
  if (bytes && *bytes < 0) {
    throw py::value_error("a limit is a number of bytes, 0 or more, or None");
  }
  MeasuringAllocator::instance().set_limit(bytes.value_or(MeasuringAllocator::kNoLimit));
}

py::dict collectives() {
  py::dict result;
  for (const CollectiveStatistics& statistics : communication_statistics()) {
    py::dict entry;
    entry["calls"] = statistics.calls;
    entry["bytes"] = statistics.bytes;
    entry["seconds"] = statistics.seconds;
    result[py::str(statistics.name)] = entry;
  }
  return result;
}

py::dict memory_limits() {
  const base::MemoryLimits limits = base::read_memory_limits();
  py::dict result;
  result["host_bytes"] = limits.host_bytes;
  result["available_bytes"] = limits.available_bytes;
  result["cgroup_limit_bytes"] = limits.cgroup.limit_bytes;
  result["cgroup_used_bytes"] = limits.cgroup.used_bytes;
  result["cgroup_left_bytes"] = limits.cgroup.left_bytes;
  result["resident_bytes"] = limits.resident_bytes;
  result["resident_peak_bytes"] = limits.resident_peak_bytes;
  return result;
}

void clock_enter(std::size_t phase) {
  if (phase >= kPhases) {
    throw py::value_error("there is no such phase");
  }
  PhaseClock::instance().enter(static_cast<Phase>(phase));
}

}  // namespace
}  // namespace ljtrain

PYBIND11_MODULE(_C, m) {
  using namespace ljtrain;
  check_torch_version();
  m.doc() =
      "Measures PyTorch training from inside: tensor memory, phases of a step, exposed "
      "communication; and the c10d backend accl.";
  m.attr("built_for_torch") = TORCH_VERSION;

  m.def("allocator_install", &MeasuringAllocator::install, "Count CPU tensor memory from now on.");
  m.def("allocator_statistics", &allocator_statistics,
        "current_bytes, peak_bytes, allocations, refused, limit_bytes (None: no limit).");
  m.def("allocator_reset_peak", [] { MeasuringAllocator::instance().reset_peak(); });
  m.def(
      "allocator_set_enabled",
      [](bool enabled) { MeasuringAllocator::instance().set_enabled(enabled); },
      py::arg("enabled"));
  m.def("allocator_set_limit", &allocator_set_limit, py::arg("limit_bytes"),
        "The most bytes of CPU tensors that may be alive, None for no limit; an allocation that "
        "would pass it raises torch.OutOfMemoryError.");

  m.def("memory_limits", &memory_limits,
        "Bytes that the kernel allows and counts: host_bytes, available_bytes, cgroup_limit_bytes, "
        "cgroup_used_bytes, cgroup_left_bytes, resident_bytes, resident_peak_bytes; None where "
        "unknown.");

  m.def(
      "clock_start", [] { PhaseClock::instance().start(); },
      "Bind the clock to this thread; begin a lap.");
  m.def("clock_enter", &clock_enter, py::arg("phase"));
  m.def("clock_leave", [] { PhaseClock::instance().leave(); });
  m.def(
      "clock_lap", [] { return PhaseClock::instance().lap(); },
      "Seconds of data, forward, backward, communication, optimizer, other since the last lap.");
  m.def(
      "clock_set_enabled", [](bool enabled) { PhaseClock::instance().set_enabled(enabled); },
      py::arg("enabled"));

  m.def("communication_install", &install_communication_timing,
        "Time the collectives of torch.distributed.");
  m.def("communication_set_enabled", &set_communication_timing_enabled, py::arg("enabled"));
  m.def("communication_statistics", &collectives,
        "calls, bytes and seconds by operator since the last reset.");
  m.def("communication_reset", &reset_communication_statistics);

  bind_accl(m);
}
