// What a check has found.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ljtrain::ljperf {

enum class Status { kOk, kWarn, kFail, kSkip };
std::string_view status_name(Status status);  // ok, warn, fail, skip

struct Finding {
  std::string id;  // "network.interface"
  Status status = Status::kOk;
  std::string found;
  std::string expected;  // empty where found says it all
  std::string fix;       // how to mend it; empty unless warn or fail
};

}  // namespace ljtrain::ljperf
