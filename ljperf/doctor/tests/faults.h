// A fault and its healthy twin: what the check must find, and what comes near and must stay ok.
#pragma once

#include "doctor/finding.h"
#include "fake_machine.h"

namespace ljtrain::ljperf {

struct Fault {
  const char* name;
  const char* id;  // the check that finds it
  Status status;   // as which
  const char* says;  // a part of what it says, found or fix
  void (*seed)(FakeMachine&);
  void (*twin)(FakeMachine&);  // no check may warn or fail
};

}  // namespace ljtrain::ljperf
