// The Python environment, read from its files: nothing of it is run.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/machine.h"
#include "image/version.h"

namespace ljtrain::ljperf {

struct PythonEnvironment {
  std::string python;                // its program, below the machine's root; may not exist
  std::string version;               // "3.12", from its folder
  std::vector<std::string> folders;  // where `import` looks, first one first
};
std::optional<PythonEnvironment> find_python_environment(const Machine& machine);

// One *.dist-info.
struct Distribution {
  std::string name;     // as in the folder's name
  std::string version;  // with its local part: "2.7.1.8+nv25.3"
  std::string folder;   // of the dist-info
  std::string place;    // the folder of `folders` that holds it
};

// "Flash_Attn" -> "flash-attn" (PEP 503).
std::string normalised(std::string_view name);
// All that are installed, in the order of import: the first of a name is the one that counts.
std::vector<Distribution> distributions(const Machine& machine);
std::vector<Distribution> distributions_of(const Machine& machine, std::string_view name);

// Where a distribution comes from: "by pip, a wheel for manylinux_2_28_x86_64, in /usr/lib/...".
std::string origin(const Machine& machine, const Distribution& distribution);

struct TorchBuild {
  std::string version;                 // "2.13.0+cpu"
  std::optional<image::Version> cuda;  // none: a CPU build
  std::string folder;                  // of the package
};
// From torch/version.py.
std::optional<TorchBuild> read_torch_build(const Machine& machine);

}  // namespace ljtrain::ljperf
