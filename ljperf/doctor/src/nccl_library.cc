// Which libnccl a process has really loaded, and whether another can take its place.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>

#include "base/text.h"
#include "check.h"
#include "elf.h"
#include "python_packages.h"

namespace ljtrain::ljperf {
namespace {

constexpr const char* kTorchLibrary = "/lib/libtorch_cuda.so";

bool is_nccl(std::string_view path) {
  std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with("libnccl.so") || name.starts_with("libaccl.so");
}

struct Loaded {
  std::set<std::string> nccl;  // paths, with " (deleted)" where the file is gone
  bool torch_cuda = false;
};

Loaded libraries_of(const Machine& machine, const std::string& process) {
  Loaded loaded;
  std::istringstream lines(machine.read("/proc/" + process + "/maps").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::size_t slash = line.find('/');
    if (slash == std::string::npos) {
      continue;
    }
    std::string path = line.substr(slash);
    if (is_nccl(path)) {
      loaded.nccl.insert(path);
    }
    loaded.torch_cuda = loaded.torch_cuda || path.find("/libtorch_cuda.so") != std::string::npos;
  }
  return loaded;
}

// Processes to look at: the one asked for, or all that can be seen.
std::vector<std::string> processes(const Machine& machine) {
  constexpr std::size_t kMost = 1024;
  if (machine.process.has_value()) {
    return {std::to_string(*machine.process)};
  }
  std::vector<std::string> all = machine.list("/proc");
  std::erase_if(all, [](const std::string& name) {
    return std::isdigit(static_cast<unsigned char>(name.front())) == 0;
  });
  all.resize(std::min(all.size(), kMost));
  return all;
}

// The libnccl that LD_PRELOAD names; "" for none.
std::string preloaded(const Machine& machine) {
  std::string value = machine.variable("LD_PRELOAD");
  std::replace(value.begin(), value.end(), ':', ' ');
  std::istringstream words(value);
  for (std::string word; words >> word;) {
    if (is_nccl(word)) {
      return word;
    }
  }
  return "";
}

std::string on_library_path(const Machine& machine) {
  std::istringstream path(machine.variable("LD_LIBRARY_PATH"));
  for (std::string folder; std::getline(path, folder, ':');) {
    if (!folder.empty() && machine.exists(folder + "/libnccl.so.2")) {
      return folder + "/libnccl.so.2";
    }
  }
  return "";
}

std::string wheel_version(const Machine& machine) {
  for (const Distribution& distribution : distributions(machine)) {
    if (distribution.name.starts_with("nvidia_nccl_cu")) {
      return distribution.version;
    }
  }
  return "";
}

bool needs_nccl(const DynamicSection& section) {
  return std::any_of(section.needed.begin(), section.needed.end(),
                     [](const std::string& name) { return is_nccl(name); });
}

}  // namespace

Finding check_nccl_linked(const Machine& machine) {
  std::optional<TorchBuild> torch = read_torch_build(machine);
  std::string library = torch.has_value() ? torch->folder + kTorchLibrary : "";
  if (!torch.has_value() || !machine.exists(library)) {
    return skip(torch.has_value() ? "a CPU build of PyTorch holds no NCCL" : "no PyTorch here");
  }
  std::optional<DynamicSection> section = read_dynamic_section(machine.at(library));
  if (!section.has_value()) {
    return fail("libtorch_cuda.so is no whole ELF library", "the file as its wheel brought it",
                "install PyTorch anew; was the disk full?");
  }
  if (!needs_nccl(*section)) {
    bool wanted = !preloaded(machine).empty() || !on_library_path(machine).empty() ||
                  (machine.release.has_value() && machine.release->components.contains("accl-n"));
    std::string found = "NCCL is linked into PyTorch statically";
    return wanted ? warn(found + ": no other library takes its place",
                         "libnccl.so.2 needed by "
                         "libtorch_cuda.so",
                         "use a PyTorch that links NCCL dynamically (the PyPI wheels do)")
                  : ok(found);
  }
  return ok("dynamically: libnccl.so.2 can be replaced");
}

Finding check_nccl_path(const Machine& machine) {
  std::string preload = preloaded(machine);
  if (!preload.empty() && !machine.exists(preload)) {
    return fail(fmt::format("LD_PRELOAD names {}, which is not there: the loader goes on without",
                            base::printable(preload)),
                "a file that exists", "mend the path, or unset LD_PRELOAD");
  }
  std::string other = on_library_path(machine);
  std::string wheel = wheel_version(machine);
  std::string real = machine.follow(other);
  constexpr std::string_view kName = "libnccl.so.";
  std::string file = real.substr(real.rfind('/') + 1);
  std::optional<image::Version> found =
      file.starts_with(kName) ? image::parse_version(file.substr(kName.size())) : std::nullopt;
  std::optional<image::Version> expected = image::parse_version(wheel);
  if (found.has_value() && found->size() > 1 && expected.has_value() && *found < *expected) {
    return warn(fmt::format("LD_LIBRARY_PATH puts NCCL {} ({}) before PyTorch's {}", found->text(),
                            base::printable(other), wheel),
                fmt::format("NCCL {} or newer", wheel),
                "take that folder off LD_LIBRARY_PATH, or update the library in it");
  }
  return ok(!preload.empty() ? base::printable(preload) + " (LD_PRELOAD)"
            : !other.empty() ? base::printable(other) + " (LD_LIBRARY_PATH)"
            : !wheel.empty() ? fmt::format("NCCL {} of PyTorch's own wheel", wheel)
                             : "nothing in the way");
}

Finding check_nccl_loaded(const Machine& machine) {
  std::string preload = preloaded(machine);
  std::vector<std::string> users;
  if (machine.process.has_value() &&
      !machine.exists(fmt::format("/proc/{}/maps", *machine.process))) {
    return fail(fmt::format("no process {}, or not to be seen here", *machine.process),
                "a process of this user", "name a running process with --pid");
  }
  for (const std::string& process : processes(machine)) {
    Loaded loaded = libraries_of(machine, process);
    std::string shown = base::printable(fmt::format("{}", fmt::join(loaded.nccl, ", ")), 120);
    if (loaded.nccl.size() > 1) {
      return fail(fmt::format("process {} has loaded two: {}", process, shown), "one libnccl",
                  "leave one of them on LD_LIBRARY_PATH, LD_PRELOAD and RPATH");
    }
    if (shown.find("(deleted)") != std::string::npos) {
      return warn(fmt::format("process {} runs on {}", process, shown),
                  "the library that is installed",
                  "restart the job: the file was replaced under it");
    }
    if (loaded.torch_cuda && loaded.nccl.empty() && !preload.empty()) {
      return warn(fmt::format("process {} has PyTorch for CUDA and no libnccl, whatever LD_PRELOAD "
                              "says",
                              process),
                  base::printable(preload),
                  "NCCL is linked in statically there, or the variable was set too late");
    }
    if (!loaded.nccl.empty()) {
      users.push_back(fmt::format("{} ({})", shown, process));
    }
  }
  if (users.empty()) {
    return skip("no process that can be seen has loaded one");
  }
  std::size_t count = users.size();
  users.resize(1);
  return ok(fmt::format("{}{}", users[0],
                        count > 1 ? fmt::format(" and {} processes more", count - 1) : ""));
}

}  // namespace ljtrain::ljperf
