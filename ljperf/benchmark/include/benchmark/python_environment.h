// The Python environment that trains: which one, and whether it can.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace ljtrain::ljperf {

// --python if given; else the python beside this program (a virtual environment's); else python3 in
// PATH.
std::filesystem::path find_python(const std::filesystem::path& wanted);

// What the environment says of itself (python/ljtrain/preflight.py): {"ok", "python", "versions",
// "problems", "torch_build", ...}. `request` is what it shall check: {"engine",
// "training_arguments", "tokenizer"}. Throws UserError when Python does not start or ljtrain is not
// installed there.
base::Json ask_environment(const std::filesystem::path& python, const base::Json& request);

// The same, and UserError with the first of its problems.
base::Json preflight(const std::filesystem::path& python, const base::Json& request);

}  // namespace ljtrain::ljperf
