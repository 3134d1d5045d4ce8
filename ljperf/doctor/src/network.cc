// Which interfaces collectives take, by NCCL's rules and the release's.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "base/text.h"
#include "check.h"
#include "drivers.h"
#include "image/network_rules.h"
#include "network_choice.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kVariable = "NCCL_SOCKET_IFNAME";

std::vector<std::string> names_of(const std::vector<Interface>& interfaces) {
  std::vector<std::string> names;
  for (const Interface& interface : interfaces) {
    names.push_back(interface.name);
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8;
  std::vector<std::string> shown(names.begin(), names.begin() + std::min(names.size(), kMost));
  std::string text = base::printable(fmt::format("{}", fmt::join(shown, ", ")));
  return names.size() > kMost ? fmt::format("{} and {} more", text, names.size() - kMost) : text;
}

// Those of `names` that reach other hosts.
std::vector<std::string> real_ones(std::vector<std::string> names) {
  std::erase_if(names, [](const std::string& name) { return image::leads_nowhere(name); });
  return names;
}

std::string set_to(const std::vector<std::string>& names) {
  return names.empty() ? fmt::format("unset {}", kVariable)
                       : fmt::format("{}={}{}", kVariable, "=", joined(names));
}

// A prefix that is also a whole name catches others beside it: eth1 and eth10.
std::string caught_beside(const image::InterfaceFilter& filter,
                          const std::vector<std::string>& chosen) {
  if (filter.exclude || filter.exact) {
    return "";
  }
  for (const std::string& name : filter.names) {
    if (std::find(chosen.begin(), chosen.end(), name) == chosen.end()) {
      continue;
    }
    for (const std::string& other : chosen) {
      bool asked_for =
          std::find(filter.names.begin(), filter.names.end(), other) != filter.names.end();
      if (other != name && other.starts_with(name) && !asked_for) {
        return fmt::format("{} is a prefix and takes {} beside {}", name, other, name);
      }
    }
  }
  return "";
}

Finding judge_choice(const Machine& machine, const InterfaceChoice& choice,
                     const std::string& shown) {
  constexpr const char* kExpected =
      "an interface that is up, has an address and reaches the others";
  std::vector<std::string> real = real_ones(names_of(choice.usable));
  std::vector<std::string> down;
  for (const Interface& interface : choice.chosen) {
    if (!interface.up || !interface.has_address) {
      down.push_back(interface.name + (interface.up ? " has no address" : " is down"));
    }
  }
  if (down.size() == choice.chosen.size()) {
    return fail(fmt::format("{}: {}", shown, joined(down)), kExpected, set_to(real));
  }
  std::vector<std::string> chosen = names_of(choice.chosen);
  if (real_ones(chosen).empty() && (machine.several_hosts() || chosen.front() != "lo")) {
    std::string found = fmt::format("{}: {} reaches no other host", shown, joined(chosen));
    return machine.several_hosts() ? fail(found, kExpected, set_to(real))
                                   : warn(found, kExpected, set_to(real));
  }
  if (real_ones(chosen).size() != chosen.size() && (choice.by_user || machine.several_hosts()) &&
      !real_ones(chosen).empty()) {
    return warn(
        fmt::format("{}: takes {}, of which not all reach other hosts", shown, joined(chosen)),
        kExpected, set_to(real_ones(chosen)));
  }
  if (!down.empty()) {
    return warn(fmt::format("{}: {}", shown, joined(down)), kExpected, set_to(real));
  }
  return ok(fmt::format("{} ({})", joined(chosen),
                        choice.by_user ? shown : fmt::format("{} is unset", kVariable)));
}

}  // namespace

InterfaceChoice choose_interfaces(const Machine& machine) {
  InterfaceChoice choice;
  choice.all = machine.interfaces();
  for (const Interface& interface : choice.all) {
    if (interface.up && interface.has_address) {
      choice.usable.push_back(interface);
    }
  }
  choice.by_user = !machine.variable(kVariable).empty();
  std::vector<std::string> names =
      choice.by_user
          ? image::select_interfaces(image::parse_interface_filter(machine.variable(kVariable)),
                                     names_of(choice.all))
          : image::default_interfaces(names_of(choice.usable));
  // A pattern takes what has an address; one that names only what has none takes those, to be told.
  for (bool usable_only : {true, false}) {
    for (const Interface& interface : usable_only ? choice.usable : choice.all) {
      if (std::find(names.begin(), names.end(), interface.name) != names.end()) {
        choice.chosen.push_back(interface);
      }
    }
    if (!choice.chosen.empty()) {
      break;
    }
  }
  return choice;
}

Finding check_network_interface(const Machine& machine) {
  InterfaceChoice choice = choose_interfaces(machine);
  std::string shown = base::printable(fmt::format("{}={}", kVariable, machine.variable(kVariable)));
  std::vector<std::string> real = real_ones(names_of(choice.usable));
  if (choice.all.empty()) {
    return skip("/sys/class/net cannot be read");
  }
  if (choice.by_user && choice.chosen.empty()) {
    return fail(fmt::format("{} matches none of {}: NCCL stops at once", shown,
                            joined(names_of(choice.all))),
                "names that exist on this host",
                set_to(real) + " (a name fixed in an image does not fit every network)");
  }
  if (choice.chosen.empty()) {
    return fail("no interface is up and has an address", "one, even if only lo",
                "give the container a network");
  }
  std::string beside = caught_beside(image::parse_interface_filter(machine.variable(kVariable)),
                                     names_of(choice.chosen));
  if (choice.by_user && !beside.empty()) {
    return warn(fmt::format("{}: {}", shown, base::printable(beside)), "the interfaces meant",
                fmt::format("write {}==NAME for whole names", kVariable));
  }
  return judge_choice(machine, choice, choice.by_user ? shown : "default choice");
}

Finding check_network_rule(const Machine& machine) {
  if (!machine.release.has_value()) {
    return skip("no release named (--release)");
  }
  auto gpus = static_cast<int>(std::max(machine.gpus.gpus.size(), gpu_nodes(machine).size()));
  const image::InterfaceRule* rule = image::interface_rule(*machine.release, gpus);
  if (rule == nullptr || gpus == 0) {
    return skip(gpus == 0 ? "no GPU here" : "the release has no rule");
  }
  const char* task = machine.task == Purpose::kTraining ? "training" : "inference";
  if (!machine.release->scenario.empty() &&
      machine.release->scenario.find(task) == std::string::npos) {
    return warn(fmt::format("release {} is for {}, not for {}", machine.release->name,
                            machine.release->scenario, task),
                "a release for the task", "see ljperf image list");
  }
  InterfaceChoice choice = choose_interfaces(machine);
  std::vector<std::string> chosen = names_of(choice.chosen);
  std::vector<std::string> all = names_of(choice.all);
  std::string wanted = fmt::format("{} for a pod of {} GPU{} (release {})", rule->interface, gpus,
                                   gpus == 1 ? "" : "s", machine.release->name);
  if (std::find(all.begin(), all.end(), rule->interface) == all.end()) {
    return warn(fmt::format("this network has no {}, only {}", rule->interface, joined(all)),
                wanted,
                fmt::format("another network than the release's: {}",
                            set_to(real_ones(names_of(choice.usable)))));
  }
  if (chosen != std::vector<std::string>{rule->interface}) {
    return warn(fmt::format("collectives take {}", joined(chosen)), wanted,
                fmt::format("export {}={}", kVariable, rule->interface));
  }
  return ok(joined(chosen), wanted);
}

Finding check_network_gloo(const Machine& machine) {
  std::string value = machine.variable("GLOO_SOCKET_IFNAME");
  if (value.empty()) {
    return ok("GLOO_SOCKET_IFNAME is unset");
  }
  std::vector<std::string> all = names_of(machine.interfaces());
  std::istringstream list(value);
  for (std::string name; std::getline(list, name, ',');) {
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      return fail(fmt::format("GLOO_SOCKET_IFNAME={}: no interface {} (there are {})",
                              base::printable(value), base::printable(name), joined(all)),
                  "whole names of interfaces (Gloo knows no prefixes, no ^ and no =)",
                  "name an interface that exists, or unset it");
    }
  }
  return ok(base::printable(value));
}

Finding check_network_rdma(const Machine& machine) {
  std::vector<std::string> devices = machine.list("/sys/class/infiniband");
  std::string wanted = machine.variable("NCCL_IB_HCA");
  if (devices.empty()) {
    return skip("no RDMA device");
  }
  if (machine.list("/dev/infiniband").empty()) {
    return warn(fmt::format("RDMA devices {}, but no /dev/infiniband here: NCCL falls back to TCP",
                            joined(devices)),
                "the devices passed in",
                "start the container with --device /dev/infiniband (or --privileged)");
  }
  if (!wanted.empty()) {
    image::InterfaceFilter filter =
        image::parse_interface_filter(wanted.substr(0, wanted.find(':')));  // a port may follow
    if (image::select_interfaces(filter, devices).empty()) {
      return fail(fmt::format("NCCL_IB_HCA={} matches none of {}", base::printable(wanted),
                              joined(devices)),
                  "names of RDMA devices that exist", "unset NCCL_IB_HCA, or name one of them");
    }
  }
  if (machine.variable("NCCL_IB_DISABLE") == "1" && machine.several_hosts()) {
    return warn("NCCL_IB_DISABLE=1 although there are RDMA devices", "RDMA between hosts",
                "unset NCCL_IB_DISABLE");
  }
  std::vector<std::string> down;
  for (const std::string& device : devices) {
    std::string ports = "/sys/class/infiniband/" + device + "/ports";
    for (const std::string& port : machine.list(ports)) {
      std::string state = machine.read(ports + "/" + port + "/state").value_or("");
      if (state.find("ACTIVE") == std::string::npos) {
        down.push_back(device + ":" + port);
      }
    }
  }
  if (!down.empty()) {
    return warn(fmt::format("{} not active", joined(down)), "every port active",
                "check cable and switch, or leave the port out with NCCL_IB_HCA=^...");
  }
  return ok(joined(devices));
}

}  // namespace ljtrain::ljperf
