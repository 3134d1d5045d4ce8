// What ljtrain.status() says: which parts of the stack are active and, if not, why not.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "check.h"
#include "python_packages.h"

namespace ljtrain::ljperf {
namespace {

std::string text_at(const base::Json& json, const char* pointer) {
  base::Json::json_pointer at(pointer);
  return json.contains(at) && json[at].is_string() ? base::printable(json[at].get<std::string>())
                                                   : "";
}

bool flag_at(const base::Json& part, const char* key) {
  return part.is_object() && part.contains(key) && part[key] == true;
}

}  // namespace

Finding check_python_stack(const Machine& machine) {
  std::optional<PythonEnvironment> environment = find_python_environment(machine);
  if (!environment.has_value() || distributions_of(machine, "ljtrain").empty()) {
    return skip("ljtrain is not installed in this environment");
  }
  std::optional<base::Json> status =
      machine.stack_status ? machine.stack_status(environment->python) : std::nullopt;
  if (!status.has_value() || !status->is_object()) {
    return skip("python -m ljtrain.status was not asked, or gave no answer");
  }
  const base::Json none = base::Json::object();
  const base::Json& parts = status->contains("parts") ? (*status)["parts"] : none;
  std::vector<std::string> said;
  std::vector<std::string> missing;
  for (const auto& [name, part] : parts.items()) {
    std::string why = text_at(part, "/why_not");
    said.push_back(fmt::format("{}: {}", name, why.empty() ? "active" : why));
    // Here nothing imports torch; that is no fault.
    if (flag_at(part, "asked_for") && !flag_at(part, "active") &&
        why.find("imported") == std::string::npos) {
      missing.push_back(said.back());
    }
  }
  base::Json::json_pointer faults("/autoload/faults");
  if (status->contains(faults) && !(*status)[faults].empty()) {
    return warn(fmt::format("autoload: {}", base::printable((*status)[faults][0].dump())),
                "no fault on import torch",
                "install ljtrain anew: pip install "
                "--no-build-isolation ljtrain");
  }
  if (!missing.empty()) {
    return warn(fmt::format("asked for, but {}", fmt::join(missing, "; ")), "active",
                "unset its variable, or mend what it says");
  }
  const base::Json& versions = status->contains("versions") ? (*status)["versions"] : none;
  for (const auto& [package, version] : versions.items()) {
    std::string found = text_at(version, "/found");
    if (!found.empty() && !flag_at(version, "ok")) {
      return warn(fmt::format("{} {} is not a version that ljtrain is tested with", package, found),
                  fmt::format("{} {}", package, text_at(version, "/tested")),
                  fmt::format("pip install '{}=={}.*'", package, text_at(version, "/tested")));
    }
  }
  return ok(fmt::format("ljtrain {}; {}", text_at(*status, "/ljtrain"), fmt::join(said, "; ")));
}

}  // namespace ljtrain::ljperf
