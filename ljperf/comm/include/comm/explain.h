// `ljperf comm --explain`: which algorithm ACCL would choose, and why. Measures nothing.
#pragma once

#include <string>

#include "comm/options.h"
#include "launcher/hardware.h"

namespace ljtrain::ljperf {

// The topology ACCL found, then a paragraph for each operation, type and size. Throws RunError when
// no communicator can be made.
std::string explain_comm(const CommPlan& plan, const Hardware& hardware);

}  // namespace ljtrain::ljperf
