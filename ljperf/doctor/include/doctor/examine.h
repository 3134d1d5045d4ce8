// All checks of a machine.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "doctor/machine.h"

namespace ljtrain::ljperf {

struct Selection {
  bool quick = false;             // only what takes milliseconds
  std::vector<std::string> only;  // ids or their groups ("network"); empty: all
};

// In the order in which faults explain each other: device nodes before driver, driver before GPUs.
std::vector<Finding> examine(const Machine& machine, const Selection& selection);

}  // namespace ljtrain::ljperf
