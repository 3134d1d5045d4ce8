// Ranks of libraries that are linked into ljperf: what `ljperf comm` starts itself with.
#pragma once

#include <string>

namespace ljtrain::ljperf {

// Becomes a rank of `library` ("memcpy" or "accl") and returns its exit code when the orchestrator
// is done. Throws UserError for another name.
int serve_rank(const std::string& library);

}  // namespace ljtrain::ljperf
