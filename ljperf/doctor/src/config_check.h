// Checks DeepSpeed's JSON and TrainingArguments, where they were given.
#pragma once

#include <vector>

#include "doctor/finding.h"
#include "doctor/machine.h"

namespace ljtrain::ljperf {

// One finding for each broken rule and each unknown key; one that is ok where nothing is wrong; none
// where no configuration was given.
std::vector<Finding> check_configuration(const Machine& machine);

}  // namespace ljtrain::ljperf
