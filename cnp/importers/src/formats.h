// One reader a format. Each throws UserError, naming the file, when there is nothing to read.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "importers/import.h"
#include "logged_run.h"

namespace ljtrain::cnp {

LoggedRun read_torchtitan(std::string_view text, const StatedFacts& stated,
                          const std::string& file);
LoggedRun read_megatron(std::string_view text, const StatedFacts& stated, const std::string& file);
LoggedRun read_trainer_state(const base::JsonDocument& document, const StatedFacts& stated);

// A record of collectives, but for its record_id, created and source.
base::OrderedJson read_nccl_tests(const base::JsonDocument& document);

}  // namespace ljtrain::cnp
