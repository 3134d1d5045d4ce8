#include "doctor/network_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.h"
#include "drivers.h"
#include "image/network_rules.h"

namespace ljtrain::ljperf {
namespace {

std::string names_of(const std::vector<Interface>& interfaces) {
  std::vector<std::string> names;
  for (const Interface& interface : interfaces) {
    names.push_back(interface.name);
  }
  return names.empty() ? "none" : base::printable(fmt::format("{}", fmt::join(names, ", ")), 200);
}

}  // namespace

NetworkValue network_value(const Machine& machine, const image::Release& release,
                           std::optional<int> gpus) {
  std::string set = machine.variable("NCCL_SOCKET_IFNAME");
  if (!set.empty()) {
    return {set, "NCCL_SOCKET_IFNAME is set already, and kept"};
  }
  int count = gpus.value_or(static_cast<int>(gpu_nodes(machine).size()));
  const image::InterfaceRule* rule = image::interface_rule(release, count);
  if (rule == nullptr) {
    return {"",
            fmt::format("release {} has no rule for {} GPUs: NCCL chooses", release.name, count)};
  }
  std::vector<Interface> all = machine.interfaces();
  auto found = std::find_if(all.begin(), all.end(), [&](const Interface& interface) {
    return interface.name == rule->interface;
  });
  std::string wanted = fmt::format("{} for {} GPU{} (release {})", rule->interface, count,
                                   count == 1 ? "" : "s", release.name);
  if (found == all.end()) {
    return {"", fmt::format("{}, but this network has no {} (there are: {}): NCCL chooses", wanted,
                            rule->interface, names_of(all))};
  }
  if (!found->up || !found->has_address) {
    return {"", fmt::format("{}, but {} {}: NCCL chooses", wanted, rule->interface,
                            found->up ? "has no address" : "is down")};
  }
  // The variable holds prefixes: eth0 would take eth01, too.
  bool is_prefix = std::any_of(all.begin(), all.end(), [&](const Interface& interface) {
    return interface.name != rule->interface && interface.name.starts_with(rule->interface);
  });
  return {(is_prefix ? "=" : "") + rule->interface, wanted};
}

}  // namespace ljtrain::ljperf
