#include "comm/serve.h"

#include "base/errors.h"
#include "memcpy_rank.h"

namespace ljtrain::ljperf {

int serve_rank(const std::string& library) {
  if (library == "memcpy") {
    return serve_memcpy();
  }
  throw base::user_error("--serve {}: no library of that name is linked into ljperf", library);
}

}  // namespace ljtrain::ljperf
