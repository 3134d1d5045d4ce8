// What a person reads of a record: at most 100 columns.
#pragma once

#include <string>

#include "cnp/record.h"

namespace ljtrain::ljperf {

// The line before the run: what will be trained. Starts with PROXY where the model is one.
std::string first_line(const cnp::Record& record);
// The line after everything else.
std::string last_line(const cnp::Record& record);
// The table of results, several lines; says what is missing where a run did not complete.
std::string result_table(const cnp::Record& record);
// "deepspeed/llama3-8b, ZeRO-3, bf16, 2 ranks x 1 core, ...": how it is trained.
std::string configuration_line(const cnp::Record& record);

}  // namespace ljtrain::ljperf
