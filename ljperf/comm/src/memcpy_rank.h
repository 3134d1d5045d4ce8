#pragma once

namespace ljtrain::ljperf {

// A rank of the library "memcpy"; returns its exit code.
int serve_memcpy();

}  // namespace ljtrain::ljperf
