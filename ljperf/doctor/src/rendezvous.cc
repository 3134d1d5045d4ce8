// How ranks find each other: the variables of torch.distributed, the master's address, the hosts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <future>
#include <sstream>

#include "base/text.h"
#include "check.h"
#include "network_choice.h"

namespace ljtrain::ljperf {
namespace {

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost" ||
         address.starts_with("::ffff:127.");
}

bool is_address(const std::string& host) {
  return host.find(':') != std::string::npos ||
         host.find_first_not_of("0123456789.") == std::string::npos;
}

// By /etc/hosts first, as the resolver does.
std::vector<std::string> resolve(const Machine& machine, const std::string& host) {
  if (is_address(host)) {
    return {host};
  }
  std::vector<std::string> addresses;
  std::istringstream lines(machine.read("/etc/hosts").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string address;
    words >> address;
    for (std::string name; words >> name;) {
      if (name == host) {
        addresses.push_back(address);
      }
    }
  }
  return addresses.empty() && machine.resolve ? machine.resolve(host) : addresses;
}

// Ports that something listens on, from /proc/net/tcp and tcp6.
bool is_taken(const Machine& machine, int port) {
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(machine.read(file).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string slot;
      std::string local;
      std::string remote;
      std::string state;
      words >> slot >> local >> remote >> state;
      if (state == "0A" && local.ends_with(fmt::format(":{:04X}", port))) {  // listening
        return true;
      }
    }
  }
  return false;
}

}  // namespace

Finding check_network_ranks(const Machine& machine) {
  constexpr const char* kExpected =
      "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together, 0 <= RANK < WORLD_SIZE";
  const char* launcher = "let the launcher set them (torchrun, srun, ljperf benchmark)";
  std::vector<std::string> missing;
  int set = 0;
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    if (!machine.has_variable(name)) {
      missing.emplace_back(name);
    } else if (!machine.variable_number(name).has_value()) {
      return fail(fmt::format("{}={} is no number", name, base::printable(machine.variable(name))),
                  kExpected, launcher);
    } else {
      ++set;
    }
  }
  if (set == 0) {
    return ok("no ranks set: started by hand");
  }
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (machine.variable(name).empty()) {
      missing.emplace_back(name);
    }
  }
  if (!missing.empty()) {
    return fail(fmt::format("{} missing beside the others", fmt::join(missing, ", ")), kExpected,
                launcher);
  }
  int rank = *machine.variable_number("RANK");
  int world = *machine.variable_number("WORLD_SIZE");
  if (world < 1 || rank < 0 || rank >= world) {
    return fail(fmt::format("RANK={} of WORLD_SIZE={}", rank, world), kExpected, launcher);
  }
  std::optional<int> local = machine.variable_number("LOCAL_RANK");
  std::size_t gpus = machine.gpus.gpus.size();
  if (local.has_value() && gpus > 0 && std::cmp_greater_equal(*local, gpus)) {
    return fail(fmt::format("LOCAL_RANK={}, but there are {} GPUs here", *local, gpus),
                "one GPU for each local rank",
                fmt::format("start at most {} ranks on this host", gpus));
  }
  return ok(fmt::format("rank {} of {}", rank, world));
}

Finding check_network_master(const Machine& machine) {
  std::string host = machine.variable("MASTER_ADDR");
  if (host.empty()) {
    return ok("MASTER_ADDR is unset");
  }
  std::string shown = base::printable("MASTER_ADDR=" + host);
  constexpr const char* kExpected = "an address that every host reaches";
  std::vector<std::string> addresses = resolve(machine, host);
  if (addresses.empty()) {
    return fail(shown + " does not resolve", kExpected,
                "use the IP address, or a name that DNS or /etc/hosts knows on every host");
  }
  bool loopback = std::any_of(addresses.begin(), addresses.end(), is_loopback);
  if (loopback && machine.several_hosts()) {
    return fail(fmt::format("{} is {}, loopback: other hosts would call themselves", shown,
                            base::printable(addresses.front())),
                kExpected,
                is_loopback(host)
                    ? "set MASTER_ADDR to the address of rank 0's host"
                    : "take the name off the 127.* lines of /etc/hosts, or use the IP address");
  }
  return ok(fmt::format(
      "{}{}", shown,
      addresses.front() == host ? "" : fmt::format(" ({})", base::printable(addresses.front()))));
}

Finding check_network_port(const Machine& machine) {
  if (machine.variable("MASTER_PORT").empty()) {
    return ok("MASTER_PORT is unset");
  }
  std::optional<int> port = machine.variable_number("MASTER_PORT");
  constexpr int kMost = 65535;
  if (!port.has_value() || *port < 1 || *port > kMost) {
    return fail("MASTER_PORT=" + base::printable(machine.variable("MASTER_PORT")),
                "a port from 1 to 65535", "set MASTER_PORT to a free port such as 29500");
  }
  bool is_first = machine.variable_number("RANK").value_or(-1) == 0;
  if (is_first && is_taken(machine, *port)) {
    return warn(fmt::format("MASTER_PORT={} is taken on rank 0's host", *port),
                "a free port, unless this job already runs",
                "end what listens there (ss -ltnp), or choose another port");
  }
  return ok(fmt::format("{}", *port));
}

Finding check_network_hosts(const Machine& machine) {
  if (machine.hosts.empty()) {
    return skip("no hosts named (--hosts)");
  }
  InterfaceChoice choice = choose_interfaces(machine);
  std::string interface =
      choice.by_user && !choice.chosen.empty() ? choice.chosen.front().name : "";
  std::vector<std::future<std::string>> answers;
  for (const std::string& host : machine.hosts) {
    answers.push_back(std::async(std::launch::async, [&machine, &host, &interface] {
      std::vector<std::string> addresses = resolve(machine, host);
      if (addresses.empty()) {
        return host + " does not resolve";
      }
      std::string why = machine.reach ? machine.reach(addresses.front(), interface) : "";
      return why.empty() ? "" : host + ": " + why;
    }));
  }
  std::vector<std::string> faults;
  for (std::future<std::string>& answer : answers) {
    std::string fault = answer.get();
    if (!fault.empty()) {
      faults.push_back(base::printable(fault));
    }
  }
  if (!faults.empty()) {
    return fail(fmt::format("{}{}", fmt::join(faults, "; "),
                            interface.empty() ? "" : " (through " + interface + ")"),
                "every host answers",
                "check names, routes and firewalls between the hosts; then NCCL_SOCKET_IFNAME");
  }
  return ok(fmt::format("{} reached", machine.hosts.size()));
}

}  // namespace ljtrain::ljperf
