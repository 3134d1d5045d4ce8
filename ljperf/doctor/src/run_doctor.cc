#include "doctor/run_doctor.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/errors.h"
#include "base/interrupts.h"
#include "base/text.h"
#include "doctor/examine.h"

namespace ljtrain::ljperf {
namespace {

constexpr double kMostSeconds = 86400;

void check_host_names(const std::vector<std::string>& hosts) {
  constexpr std::size_t kMostHosts = 1024;
  for (const std::string& host : hosts) {
    bool plain = !host.empty() && host.size() <= 253 && host.front() != '-' &&
                 std::all_of(host.begin(), host.end(), [](unsigned char c) {
                   return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == ':';
                 });
    if (!plain) {
      throw base::user_error("--hosts {}: no host name or address; give a list such as node1,node2",
                             base::printable(host));
    }
  }
  if (hosts.size() > kMostHosts) {
    throw base::user_error("--hosts: {} names; at most {} at once", hosts.size(), kMostHosts);
  }
}

std::optional<base::JsonDocument> read_configuration(const std::string& file, const char* option) {
  constexpr std::uintmax_t kLargest = std::uintmax_t{4} << 20;
  if (file.empty()) {
    return std::nullopt;
  }
  base::JsonDocument document = base::JsonDocument::read(file, kLargest);
  if (!document.root().is_object()) {
    throw base::user_error("{} {}: must hold a JSON object", option, base::printable(file));
  }
  return document;
}

// TrainingArguments may name the DeepSpeed file, or hold it.
void take_nested_deepspeed(Machine& machine) {
  if (!machine.training_arguments.has_value() || machine.deepspeed.has_value()) {
    return;
  }
  const base::Json& arguments = machine.training_arguments->root();
  auto found = arguments.find("deepspeed");
  if (found == arguments.end()) {
    return;
  }
  if (found->is_object()) {
    machine.deepspeed = base::JsonDocument::parse(
        found->dump(2), machine.training_arguments->name() + ": key `deepspeed`");
  } else if (found->is_string()) {
    machine.deepspeed =
        read_configuration(found->get<std::string>(),
                           (machine.training_arguments->name() + ": key `deepspeed`").c_str());
  }
}

Machine machine_of(const DoctorOptions& options) {
  Machine machine = real_machine();
  if (!options.root.empty()) {
    machine.root = options.root;
    machine.own_program.clear();
    machine.resolve = nullptr;
    machine.clock = nullptr;
    machine.stack_status = nullptr;
  }
  check_host_names(options.hosts);
  machine.hosts = options.hosts;
  machine.task = options.task == "inference" ? Purpose::kInference : Purpose::kTraining;
  machine.python = options.python;
  machine.process = options.process;
  if (!options.python.empty() && !machine.exists(options.python)) {
    throw base::user_error("--python {}: no such program", base::printable(options.python));
  }
  if (!options.release.empty()) {
    machine.release = image::find_release(options.release);
  }
  machine.deepspeed = read_configuration(options.deepspeed, "--deepspeed");
  machine.training_arguments =
      read_configuration(options.training_arguments, "--training-arguments");
  take_nested_deepspeed(machine);
  return machine;
}

bool has_failed(std::span<const Finding> findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.status == Status::kFail; });
}

std::string now_text() {
  std::array<char, 32> text{};
  std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

// One line for every check whose status has changed; the first round tells what is not ok.
void print_changes(std::span<const Finding> findings, std::map<std::string, Status>& last,
                   bool json) {
  for (const Finding& finding : findings) {
    auto before = last.find(finding.id);
    Status was = before == last.end() ? Status::kOk : before->second;
    bool quiet = was == finding.status || (before == last.end() && finding.status == Status::kSkip);
    last[finding.id] = finding.status;
    if (quiet) {
      continue;
    }
    if (json) {
      base::OrderedJson change = findings_json(std::span(&finding, 1))["checks"][0];
      change["time"] = now_text();
      change["schema_version"] = 1;
      fmt::print("{}\n", change.dump());
    } else {
      fmt::print("{} {:<5} {:<20} {}{}\n", now_text(), status_name(finding.status), finding.id,
                 finding.found, finding.fix.empty() ? "" : "; " + finding.fix);
    }
  }
  std::fflush(stdout);
}

// Until a check fails (exit code 1, for a supervisor to act on) or a signal comes.
int watch(const DoctorOptions& options) {
  base::Interrupts interrupts;
  std::map<std::string, Status> last;
  fmt::print(stderr, "watching every {} s: a line for each change, until a check fails\n",
             *options.watch);
  auto pause = std::chrono::milliseconds(static_cast<std::int64_t>(*options.watch * 1000));
  while (true) {
    std::vector<Finding> findings =
        examine(machine_of(options), {.quick = options.quick, .only = options.only});
    print_changes(findings, last, options.json);
    if (has_failed(findings)) {
      return base::kFailed;
    }
    pollfd signal{interrupts.fd(), POLLIN, 0};
    if (::poll(&signal, 1, static_cast<int>(pause.count())) > 0) {
      return base::kInterrupted;
    }
  }
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  if (options.watch.has_value()) {
    if (!std::isfinite(*options.watch) || *options.watch <= 0 || *options.watch > kMostSeconds) {
      throw base::user_error("--watch {}: seconds between two looks, more than 0, at most a day",
                             *options.watch);
    }
    return watch(options);
  }
  std::vector<Finding> findings =
      examine(machine_of(options), {.quick = options.quick, .only = options.only});
  if (options.json) {
    fmt::print("{}\n", findings_json(findings).dump(2));
  } else {
    fmt::print("{}", findings_text(findings, options.brief));
  }
  return has_failed(findings) ? base::kFailed : base::kDone;
}

}  // namespace ljtrain::ljperf
