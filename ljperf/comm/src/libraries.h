// Which libraries a run measures, where they are on this machine, and how their ranks are started.
#pragma once

#include <vector>

#include "comm/options.h"
#include "launcher/hardware.h"
#include "library.h"

namespace ljtrain::ljperf {

// DeepSpeed names its shared memory by an address and a port; the port is this process's id.
inline constexpr const char* kDeepSpeedAddress = "ljperf";

struct Found {
  std::vector<Library> libraries;  // memcpy first, then ACCL, then the peers
  std::vector<Skipped> skipped;
};

// Compiles drivers where needed (seconds, once). `ranks`: of the run.
Found find_libraries(const CommPlan& plan, int ranks, const Hardware& hardware);

}  // namespace ljtrain::ljperf
