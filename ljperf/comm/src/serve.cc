#include "comm/serve.h"

#include "accl_rank.h"
#include "base/errors.h"
#include "memcpy_rank.h"

namespace ljtrain::ljperf {

int serve_rank(const std::string& library) {
  if (library == "memcpy") {
    return serve_memcpy();
  }
  if (library == "accl") {
    return serve_accl();
  }
  throw base::user_error("--serve {}: no library of that name is linked into ljperf", library);
}

}  // namespace ljtrain::ljperf
