// The machine as the checks see it: files below a root, environment variables, and what no file
// tells, as functions. Tests seed faults in all three.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "doctor/gpu_report.h"
#include "image/release.h"

namespace ljtrain::ljperf {

enum class Purpose { kTraining, kInference };

struct ClockState {
  bool synchronised = false;
  double error_s = 0;  // as the kernel estimates it
};

// One network interface.
struct Interface {
  std::string name;
  int index = 0;
  bool up = false;
  bool has_address = false;
};

struct Machine {
  std::filesystem::path root = "/";
  base::Environment environment;
  Purpose task = Purpose::kTraining;
  std::optional<image::Release> release;
  std::vector<std::string> hosts;
  std::filesystem::path python;       // asked for; empty: found
  std::filesystem::path own_program;  // this program, for the Python beside it; may be empty
  std::optional<int> process;         // whose libraries to look at; none: all that can be seen
  std::optional<base::JsonDocument> deepspeed;
  std::optional<base::JsonDocument> training_arguments;
  std::time_t now = 0;

  GpuReport gpus;
  std::function<std::optional<ClockState>()> clock;
  // The addresses of a host name that /etc/hosts does not know; empty: none.
  std::function<std::vector<std::string>(const std::string& host)> resolve;
  // Why the host cannot be reached through that interface (empty: any); empty: it can.
  std::function<std::string(const std::string& host, const std::string& interface)> reach;
  // What `python -m ljtrain.status` prints; nullopt: not asked, or no answer.
  std::function<std::optional<base::Json>(const std::filesystem::path& python)> stack_status;

  // A path below the root.
  std::filesystem::path at(std::string_view path) const;
  bool exists(std::string_view path) const;
  // A file's text without the blanks at its end, at most 16 MiB of it; nullopt: cannot be read.
  std::optional<std::string> read(std::string_view path) const;
  std::optional<std::int64_t> read_number(std::string_view path) const;
  // Names in a folder, ascending; empty where it cannot be read.
  std::vector<std::string> list(std::string_view path) const;
  // Where a link leads, followed below the root; the path itself where it is none.
  std::string follow(std::string path) const;

  // "" where unset.
  std::string variable(const std::string& name) const;
  bool has_variable(const std::string& name) const { return environment.contains(name); }
  // A whole number from a variable.
  std::optional<int> variable_number(const std::string& name) const;

  std::vector<Interface> interfaces() const;  // by index, as NCCL sees them
  bool in_container() const;
  bool several_hosts() const;  // the job spans them, as far as the environment says
  bool has_rdma() const;
};

// This machine.
Machine real_machine();

}  // namespace ljtrain::ljperf
