// Where a run took place: system, versions, variables, git state; and how secrets are kept out of
// it.
#pragma once

#include <map>
#include <string>

#include "base/json.h"
#include "base/process.h"
#include "cnp/record.h"
#include "launcher/hardware.h"

namespace ljtrain::ljperf {

// Stands in for a value that may be a secret.
inline constexpr const char* kRedacted = "<redacted>";

// The value of a variable as it may be shown: kRedacted when the name speaks of a secret (token,
// key, password, ...) or the value looks like one (a URL with credentials, an access key, a bearer
// token, a private key).
std::string redact(const std::string& name, const std::string& value);

// An argument of the command line as it may be shown: KEY=VALUE and --set=KEY=VALUE are judged by
// KEY.
std::string redact_argument(const std::string& argument);
// An object of settings with the values of secrets replaced.
base::OrderedJson redact_settings(base::OrderedJson settings);

// The variables that can change what a run computes or how fast (OMP_*, NCCL_*, TORCH*, ...),
// redacted.
std::map<std::string, std::string> relevant_variables(const base::Environment& environment);

// For the record. `versions` as the preflight gives them.
cnp::Environment describe_environment(const Hardware& hardware,
                                      const std::map<std::string, std::string>& versions);

// `ljperf benchmark --env-dump`: all of the above and every variable, redacted, as one document.
base::OrderedJson dump_environment(const Hardware& hardware, const base::Json& preflight_answer);

}  // namespace ljtrain::ljperf
