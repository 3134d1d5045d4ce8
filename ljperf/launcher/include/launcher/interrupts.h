// base::Interrupts under the name that the launcher's users know.
#pragma once

#include "base/interrupts.h"

namespace ljtrain::ljperf {

using base::Interrupts;

}  // namespace ljtrain::ljperf
