#include "python_packages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "base/text.h"

namespace ljtrain::ljperf {
namespace {

// The program that `wanted`, the environment or PATH names.
std::string find_program(const Machine& machine) {
  if (!machine.python.empty()) {
    return machine.python.string();
  }
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    std::string program = machine.variable(name) + "/bin/python";
    if (machine.has_variable(name) && machine.exists(program)) {
      return program;
    }
  }
  if (!machine.own_program.empty()) {
    std::string beside = (machine.own_program.parent_path() / "python").string();
    if (machine.exists(beside)) {
      return beside;
    }
  }
  std::istringstream path(machine.variable("PATH"));
  for (std::string folder; std::getline(path, folder, ':');) {
    if (!folder.empty() && machine.exists(folder + "/python3")) {
      return folder + "/python3";
    }
  }
  return "";
}

// "3.12" from the program's own name behind links, else the newest library folder of the prefix.
std::string python_version(const Machine& machine, const std::string& program,
                           const std::string& prefix) {
  constexpr std::string_view kName = "python";
  std::string real = machine.follow(program);
  std::string file = real.substr(real.rfind('/') + 1);
  if (file.starts_with("python3.")) {
    return file.substr(kName.size());
  }
  std::string newest;
  for (const std::string& name : machine.list(prefix + "/lib")) {
    std::optional<image::Version> version = name.starts_with("python3.")
                                                ? image::parse_version(name.substr(kName.size()))
                                                : std::nullopt;
    std::optional<image::Version> best = image::parse_version(newest);
    if (version.has_value() && (!best.has_value() || *version > *best)) {
      newest = name.substr(kName.size());
    }
  }
  return newest;
}

void add_folder(const Machine& machine, PythonEnvironment& environment, const std::string& folder) {
  // lib64 is often a link to lib.
  bool known = std::any_of(
      environment.folders.begin(), environment.folders.end(), [&](const std::string& other) {
        std::error_code error;
        return std::filesystem::equivalent(machine.at(folder), machine.at(other), error);
      });
  if (!known && machine.exists(folder)) {
    environment.folders.push_back(folder);
  }
}

}  // namespace

std::optional<PythonEnvironment> find_python_environment(const Machine& machine) {
  PythonEnvironment environment;
  environment.python = find_program(machine);
  if (environment.python.empty()) {
    return std::nullopt;
  }
  std::string prefix =
      std::filesystem::path(environment.python).parent_path().parent_path().string();
  environment.version = python_version(machine, environment.python, prefix);
  std::istringstream path(machine.variable("PYTHONPATH"));
  for (std::string folder; std::getline(path, folder, ':');) {
    if (!folder.empty()) {
      add_folder(machine, environment, folder);
    }
  }
  std::string library = "/lib/python" + environment.version;
  std::optional<std::string> venv = machine.read(prefix + "/pyvenv.cfg");
  bool isolated =
      venv.has_value() && venv->find("include-system-site-packages = true") == std::string::npos;
  if (!isolated && machine.variable("PYTHONNOUSERSITE").empty() && machine.has_variable("HOME")) {
    add_folder(machine, environment,
               machine.variable("HOME") + "/.local" + library + "/site-packages");
  }
  if (prefix == "/usr") {
    add_folder(machine, environment, "/usr/local" + library + "/dist-packages");
    add_folder(machine, environment, "/usr/lib/python3/dist-packages");
  }
  add_folder(machine, environment, prefix + library + "/site-packages");
  add_folder(machine, environment, prefix + library + "/dist-packages");
  add_folder(machine, environment,
             prefix + "/lib64/python" + environment.version + "/site-packages");
  return environment;
}

std::string normalised(std::string_view name) {
  std::string text;
  for (char c : name) {
    bool separator = c == '-' || c == '_' || c == '.';
    if (separator && !text.empty() && text.back() == '-') {
      continue;
    }
    text += separator ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

std::vector<Distribution> distributions(const Machine& machine) {
  constexpr std::string_view kSuffix = ".dist-info";
  std::vector<Distribution> all;
  std::optional<PythonEnvironment> environment = find_python_environment(machine);
  if (!environment.has_value()) {
    return all;
  }
  for (const std::string& folder : environment->folders) {
    for (const std::string& entry : machine.list(folder)) {
      std::size_t dash = entry.find('-');
      if (entry.ends_with(kSuffix) && dash != std::string::npos &&
          dash + 1 < entry.size() - kSuffix.size()) {
        all.push_back({entry.substr(0, dash),
                       entry.substr(dash + 1, entry.size() - kSuffix.size() - dash - 1),
                       folder + "/" + entry, folder});
      }
    }
  }
  return all;
}

std::vector<Distribution> distributions_of(const Machine& machine, std::string_view name) {
  std::vector<Distribution> all = distributions(machine);
  std::string wanted = normalised(name);
  std::erase_if(all, [&](const Distribution& d) { return normalised(d.name) != wanted; });
  return all;
}

std::string origin(const Machine& machine, const Distribution& distribution) {
  std::string text;
  std::string installer = machine.read(distribution.folder + "/INSTALLER").value_or("");
  if (!installer.empty()) {
    text = "installed by " + base::printable(installer, 20);
  }
  std::istringstream wheel(machine.read(distribution.folder + "/WHEEL").value_or(""));
  for (std::string line; std::getline(wheel, line);) {
    constexpr std::string_view kTag = "Tag: ";
    if (line.starts_with(kTag)) {
      std::string platform = line.substr(line.rfind('-') + 1);
      text +=
          fmt::format("{}wheel for {}", text.empty() ? "" : ", ", base::printable(platform, 40));
      break;
    }
  }
  return fmt::format("{}{}in {}", text, text.empty() ? "" : ", ",
                     base::printable(distribution.place));
}

std::optional<TorchBuild> read_torch_build(const Machine& machine) {
  std::optional<PythonEnvironment> environment = find_python_environment(machine);
  if (!environment.has_value()) {
    return std::nullopt;
  }
  for (const std::string& folder : environment->folders) {
    std::optional<std::string> text = machine.read(folder + "/torch/version.py");
    if (!text.has_value()) {
      continue;
    }
    TorchBuild build;
    build.folder = folder + "/torch";
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
      std::size_t open = line.find('\'');
      std::size_t close = open == std::string::npos ? open : line.find('\'', open + 1);
      if (close == std::string::npos) {
        continue;
      }
      std::string value = line.substr(open + 1, close - open - 1);
      if (line.starts_with("__version__")) {
        build.version = base::printable(value, 60);
      } else if (line.starts_with("cuda")) {
        build.cuda = image::parse_version(value);
      }
    }
    return build;
  }
  return std::nullopt;
}

}  // namespace ljtrain::ljperf
