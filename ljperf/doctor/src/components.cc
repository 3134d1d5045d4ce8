// What is installed against what the release brought: by the files, without running Python.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>

#include "base/text.h"
#include "check.h"
#include "drivers.h"
#include "python_packages.h"

namespace ljtrain::ljperf {
namespace {

// Two of one of these in one environment is a fault; of others it may be meant.
constexpr std::array<std::string_view, 6> kWatched{"torch",      "deepspeed", "transformers",
                                                   "accelerate", "triton",    "numpy"};

// Components of a manifest that are no Python packages.
constexpr std::array<std::string_view, 6> kNoPackages{"ubuntu", "python", "cuda",
                                                      "perf",   "gdb",    "accl-n"};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::replace(text.begin(), text.end(), '-', '.');
  std::replace(text.begin(), text.end(), '_', '.');
  return text;
}

// As PEP 440 compares local versions, and a manifest without a local part means any build.
bool same_version(const std::string& published, const std::string& installed) {
  std::string wanted = lower(published);
  std::string found = lower(installed);
  return wanted == found ||
         (wanted.find('+') == std::string::npos && found.substr(0, found.find('+')) == wanted);
}

std::string os_version(const Machine& machine) {
  std::istringstream lines(machine.read("/etc/os-release").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("VERSION_ID=")) {
      std::string value = line.substr(line.find('=') + 1);
      std::erase(value, '"');
      return value;
    }
  }
  return "";
}

// What is here of a component; "" where that cannot be told from files.
std::string installed_version(const Machine& machine, const std::string& component) {
  if (component == "ubuntu") {
    return os_version(machine);
  }
  if (component == "cuda") {
    std::optional<CudaInUse> cuda = cuda_in_use(machine);
    return cuda.has_value() && !cuda->where.starts_with("release") ? cuda->version.text() : "";
  }
  std::vector<Distribution> found = distributions_of(machine, component);
  return found.empty() ? "" : found.front().version;
}

bool is_package(const std::string& component) {
  return std::find(kNoPackages.begin(), kNoPackages.end(), component) == kNoPackages.end();
}

// CUDA and Ubuntu: as many numbers as the manifest gives.
bool same_prefix(const std::string& published, const std::string& installed) {
  std::optional<image::Version> wanted = image::parse_version(published);
  std::optional<image::Version> found = image::parse_version(installed);
  return wanted.has_value() && found.has_value() && wanted->major() == found->major() &&
         wanted->minor() == found->minor();
}

std::string architecture() {
#if defined(__aarch64__)
  return "aarch64";
#else
  return "amd64";
#endif
}

// Files of a RECORD that are gone or of another size; scripts and byte code do not count.
std::vector<std::string> damaged_files(const Machine& machine, const Distribution& distribution) {
  std::vector<std::string> damaged;
  std::istringstream record(machine.read(distribution.folder + "/RECORD").value_or(""));
  for (std::string line; std::getline(record, line);) {
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    std::size_t size_at = line.rfind(',');
    std::size_t hash_at = size_at == std::string::npos || size_at == 0
                              ? std::string::npos
                              : line.rfind(',', size_at - 1);
    if (hash_at == std::string::npos || size_at + 1 >= line.size() || line.starts_with("..") ||
        line.starts_with('/') || line.starts_with('"') || line.ends_with(",,") ||
        line.find(".pyc,") != std::string::npos) {
      continue;
    }
    std::string file = line.substr(0, hash_at);
    std::error_code error;
    std::uintmax_t size =
        std::filesystem::file_size(machine.at(distribution.place + "/" + file), error);
    if (error || size != std::strtoull(line.c_str() + size_at + 1, nullptr, 10)) {
      damaged.push_back(file);
    }
  }
  return damaged;
}

}  // namespace

Finding check_python_torch(const Machine& machine) {
  std::optional<TorchBuild> torch = read_torch_build(machine);
  if (!torch.has_value()) {
    return skip(find_python_environment(machine).has_value() ? "no PyTorch in this environment"
                                                             : "no Python found");
  }
  std::string build = torch->cuda.has_value() ? "CUDA " + torch->cuda->text() : "CPU";
  std::string found = fmt::format("{}, {} build", torch->version, build);
  if (!torch->cuda.has_value() && !gpu_nodes(machine).empty()) {
    return fail(found + ", although there are GPUs here", "a build for CUDA",
                "install the CUDA build of PyTorch, or hide the GPUs: CUDA_VISIBLE_DEVICES=");
  }
  return ok(found);
}

Finding check_python_reinstalled(const Machine& machine) {
  if (!machine.release.has_value()) {
    return skip("no release named (--release)");
  }
  const image::Components components = machine.release->components_on(architecture());
  std::vector<std::string> fine;
  for (const std::string& package : machine.release->do_not_reinstall) {
    auto published = components.find(package);
    if (published == components.end()) {
      continue;
    }
    std::vector<Distribution> found = distributions_of(machine, package);
    std::string expected =
        fmt::format("{} {} of release {}", package, published->second, machine.release->name);
    if (found.empty()) {
      return fail(fmt::format("{} is not installed", package), expected,
                  "start anew from the image: pip has no such build");
    }
    if (!same_version(published->second, found.front().version)) {
      bool shadowed = found.size() > 1 && same_version(published->second, found[1].version);
      return fail(fmt::format("{} {}, {}", package, base::printable(found.front().version, 40),
                              origin(machine, found.front())),
                  expected,
                  shadowed
                      ? fmt::format("pip uninstall {}: the image's own lies behind it", package)
                      : "start anew from the image: it was replaced by another build");
    }
    fine.push_back(fmt::format("{} {}", package, found.front().version));
  }
  return ok(fine.empty() ? "the release names none" : fmt::format("{}", fmt::join(fine, ", ")));
}

Finding check_python_twice(const Machine& machine) {
  std::map<std::string, std::vector<Distribution>> by_name;
  for (const Distribution& distribution : distributions(machine)) {
    by_name[normalised(distribution.name)].push_back(distribution);
  }
  for (std::string_view watched : kWatched) {
    auto entry = by_name.find(std::string(watched));
    if (entry == by_name.end() || entry->second.size() < 2) {
      continue;
    }
    const std::vector<Distribution>& found = entry->second;
    std::string both = fmt::format("{} {} in {} and {} in {}", watched, found[0].version,
                                   base::printable(found[0].place), found[1].version,
                                   base::printable(found[1].place));
    if (found[0].place == found[1].place) {
      return fail(
          both + ": half an uninstallation", "one of each",
          fmt::format("pip uninstall {0} until none is left, then install {0} anew", watched));
    }
    return warn(
        both + ": the first one counts", "one of each",
        fmt::format("pip uninstall {} where it is not meant (PYTHONPATH, ~/.local)", watched));
  }
  std::optional<PythonEnvironment> environment = find_python_environment(machine);
  if (!environment.has_value() || environment->folders.empty()) {
    return skip("no Python packages found; name the environment with --python");
  }
  return ok(fmt::format("{} packages in {}", by_name.size(),
                        base::printable(environment->folders.back())));
}

Finding check_python_files(const Machine& machine) {
  std::optional<PythonEnvironment> environment = find_python_environment(machine);
  if (!environment.has_value() || environment->folders.empty()) {
    return skip("no Python found");
  }
  for (const std::string& folder : environment->folders) {
    for (const std::string& name : machine.list(folder)) {
      if (name.starts_with('~')) {  // pip renames what it removes
        return warn(base::printable(folder + "/" + name) + ": left by an interrupted pip",
                    "no such folder", "remove it, then install that package anew");
      }
    }
  }
  std::vector<std::string> whole;
  for (const char* package : {"torch", "deepspeed"}) {
    std::vector<Distribution> found = distributions_of(machine, package);
    if (found.empty()) {
      continue;
    }
    std::vector<std::string> damaged = damaged_files(machine, found.front());
    if (!damaged.empty()) {
      return fail(
          fmt::format("{} file{} of {} {} not as installed, such as {}", damaged.size(),
                      damaged.size() == 1 ? "" : "s", package, found.front().version,
                      base::printable(damaged.front())),
          "files as the RECORD of the package has them",
          fmt::format("edited or half overwritten: install {} anew, from where it came", package));
    }
    whole.emplace_back(package);
  }
  return whole.empty() ? skip("neither torch nor deepspeed is installed")
                       : ok(fmt::format("{} as installed", fmt::join(whole, ", ")));
}

Finding check_python_components(const Machine& machine) {
  if (!machine.release.has_value()) {
    return skip("no release named (--release)");
  }
  const std::vector<std::string>& guarded = machine.release->do_not_reinstall;
  std::vector<std::string> others;
  std::size_t same = 0;
  for (const auto& [name, published] : machine.release->components_on(architecture())) {
    bool judged_elsewhere = std::find(guarded.begin(), guarded.end(), name) != guarded.end();
    std::string installed = installed_version(machine, name);
    if (judged_elsewhere || (installed.empty() && !is_package(name))) {
      continue;  // perf, gdb and the like leave no record that can be compared
    }
    bool agrees =
        is_package(name) ? same_version(published, installed) : same_prefix(published, installed);
    if (agrees) {
      ++same;
    } else {
      others.push_back(fmt::format("{} {} (release {})", name,
                                   installed.empty() ? "missing" : base::printable(installed, 30),
                                   published));
    }
  }
  if (others.empty()) {
    return ok(fmt::format("{} as in release {}", same, machine.release->name));
  }
  constexpr std::size_t kMost = 4;
  std::size_t count = others.size();
  others.resize(std::min(count, kMost));
  return warn(fmt::format("{} of {} differ: {}{}", count, count + same, fmt::join(others, ", "),
                          count > kMost ? ", ..." : ""),
              fmt::format("as in release {}", machine.release->name),
              "start anew from the image, or name the release this is (ljperf image list)");
}

Finding check_image_manifest(const Machine& machine) {
  if (!machine.release.has_value()) {
    return skip("no release named (--release)");
  }
  const image::Release& release = *machine.release;
  if (release.cuda.has_value() && release.driver.has_value()) {
    // A policy below the rule would promise what CUDA cannot do.
    image::DriverAnswer answer = image::judge_driver(
        {release.driver->minimum, *release.cuda, image::GpuClass::kConsumer, false});
    if (answer.verdict == image::Verdict::kFailure) {
      return fail(fmt::format("release {} asks for driver {}, CUDA {} needs more", release.name,
                              release.driver->minimum.text(), release.cuda->text()),
                  answer.expected, "mend driver.minimum in the manifest");
    }
  }
  std::set<int> seen;
  for (const image::InterfaceRule& rule : release.interface_rules) {
    for (int gpus : rule.gpus_per_pod) {
      if (!seen.insert(gpus).second) {
        return fail(fmt::format("release {} has two network rules for {} GPUs", release.name, gpus),
                    "one for each number of GPUs", "mend rules.nccl_socket_ifname in the manifest");
      }
    }
  }
  std::string text = fmt::format("{} ({})", release.tag, release.source);
  return ok(release.not_for.empty() ? text : text + ", not for " + release.not_for);
}

}  // namespace ljtrain::ljperf
