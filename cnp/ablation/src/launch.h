// One run: `ljperf benchmark --json` as a subprocess, and the record it prints.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/interrupts.h"
#include "cnp/record.h"

namespace ljtrain::cnp {

// A way to call ljperf in one environment.
struct Program {
  std::vector<std::string> argv;       // `ljperf benchmark`, or what runs that in a container
  std::vector<std::string> arguments;  // such as --python
  bool in_container = false;
};

// ljperf as this machine has it: `wanted`, else beside this program, else in PATH. UserError when
// it is nowhere.
std::filesystem::path find_ljperf(const std::filesystem::path& wanted);

// `where` is a virtual environment (a folder with bin/python), or an image for podman or docker.
// With `own_ljperf` a virtual environment's own ljperf is used where it has one. UserError when it
// is neither, or no container engine is installed.
Program program_in(const std::string& name, const std::string& where,
                   const std::filesystem::path& ljperf, bool own_ljperf,
                   const std::filesystem::path& records);

enum class RunEnd { kCompleted, kFailed, kInterrupted };

struct RunOutcome {
  RunEnd end = RunEnd::kFailed;
  std::optional<Record> record;  // always when completed; of other runs where one was printed
  std::string sentence;          // why it did not complete
  bool refused = false;          // ljperf called it bad input: nothing was started
  double wall_s = 0;
};

// Runs it to its end. An interrupt is passed on to ljperf, which keeps what it has measured; one
// that takes longer than `timeout_s` is interrupted, then killed. Nothing that it has started stays.
RunOutcome launch(const std::vector<std::string>& argv,
                  const std::map<std::string, std::string>& variables, double timeout_s,
                  const base::Interrupts& interrupts);

// Whether ljperf would take a run: it is asked with --dry-run and starts nothing.
struct DryRun {
  bool accepted = false;
  bool interrupted = false;
  std::string sentence;  // why it would not
};
DryRun try_dry_run(std::vector<std::string> argv,
                   const std::map<std::string, std::string>& variables, double timeout_s,
                   const base::Interrupts& interrupts);

}  // namespace ljtrain::cnp
