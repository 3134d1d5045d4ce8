// `ljperf doctor`: examines this machine and prints what it finds.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "doctor/finding.h"
#include "doctor/machine.h"

namespace ljtrain::ljperf {

struct DoctorOptions {
  std::string release;
  std::string task = "training";
  std::vector<std::string> hosts;
  std::string deepspeed;
  std::string training_arguments;
  std::string python;
  std::string root;  // examines the files below it instead of the machine's; for tests
  std::optional<int> process;
  std::optional<double> watch;  // seconds between examinations
  std::vector<std::string> only;
  bool quick = false;
  bool brief = false;
  bool json = false;
};

// Returns 0 when nothing failed, else 1; 130 when interrupted while watching. Throws UserError for
// bad input.
int run_doctor(const DoctorOptions& options);

// {"schema_version", "status", "checks": [{"id", "status", "found", "expected", "fix"}], "counts"}
base::OrderedJson findings_json(std::span<const Finding> findings);
// At most 100 columns: one line a check, then what is wrong; brief: that alone, and the counts.
std::string findings_text(std::span<const Finding> findings, bool brief = false);

}  // namespace ljtrain::ljperf
