#pragma once

namespace ljtrain::ljperf {

// A rank of ACCL through its C interface (NCCL's functions, no stream); returns its exit code.
int serve_accl();

}  // namespace ljtrain::ljperf
