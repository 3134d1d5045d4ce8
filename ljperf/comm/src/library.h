// One library under test: how its ranks are started and what it can do.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/process.h"
#include "comm/options.h"
#include "operations.h"

namespace ljtrain::ljperf {

// How an operation is called. Broadcast is always in place: MPI, oneCCL and c10d have no other.
struct Variant {
  bool in_place = false;
  bool registered = false;
  bool operator==(const Variant&) const = default;
};

struct Library {
  std::string name;
  Interface interface = Interface::kC;
  std::vector<std::string> argv;  // of a rank, or of the launcher that starts them all
  bool launcher = false;
  base::Environment environment;  // added to the ranks'
  std::string detail;             // version and the like, for the record
  // False: this library has no such operation. What it lacks is left out of the table.
  std::function<bool(ljperf_comm::Op, ljperf_comm::Type, Variant)> supports;

  std::string title() const { return interface == Interface::kC ? name : name + "/c10d"; }
};

struct Skipped {
  std::string library;
  std::string reason;
  bool start_failed = false;  // it is there, and should have run
};

}  // namespace ljtrain::ljperf
