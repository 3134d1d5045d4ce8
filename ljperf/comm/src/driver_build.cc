#include "driver_build.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/errors.h"
#include "base/process.h"
#include "driver_sources.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::chrono::minutes kCompilePatience{3};

std::filesystem::path cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path base =
      cache != nullptr && *cache != '\0' ? std::filesystem::path(cache)
      : home != nullptr && *home != '\0'
          ? std::filesystem::path(home) / ".cache"
          : std::filesystem::temp_directory_path() / fmt::format("ljtrain-{}", ::getuid());
  return base / "ljtrain" / "comm";
}

// FNV-1a: the same on every machine, and only a name.
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (unsigned char c : text) {
    value = (value ^ c) * 0x100000001b3;
  }
  return value;
}

std::string first_error(const std::string& errors) {
  std::istringstream lines(errors);
  std::string first;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("error") != std::string::npos ||
        line.find("undefined reference") != std::string::npos) {
      return line;
    }
    first = first.empty() ? line : first;
  }
  return first.empty() ? "the compiler says nothing" : first;
}

}  // namespace

std::filesystem::path find_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::filesystem::path candidate = std::filesystem::path(folder) / name;
    if (::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  return {};
}

std::filesystem::path build_driver(const std::string& source,
                                   const std::vector<std::string>& command,
                                   const std::vector<std::string>& tail) {
  std::string everything = fmt::format("{}\n{}\n", fmt::join(command, "\n"), fmt::join(tail, "\n"));
  for (const auto& [name, text] : driver_sources()) {
    everything += name + "\n" + text;
  }
  std::string stem = std::filesystem::path(source).stem().string();
  std::filesystem::path program =
      cache_folder() / fmt::format("{}-{:016x}", stem, hash(everything));
  if (::access(program.c_str(), X_OK) == 0) {
    return program;
  }
  std::filesystem::path folder = fmt::format("{}.{}", program.string(), ::getpid());
  std::error_code error;
  for (const auto& [name, text] : driver_sources()) {
    std::filesystem::create_directories((folder / name).parent_path(), error);
    std::ofstream(folder / name) << text;
  }
  base::SpawnOptions options;
  options.argv = command;
  options.argv.insert(options.argv.end(), {"-I", folder.string(), (folder / source).string(), "-o",
                                           (folder / "program").string()});
  options.argv.insert(options.argv.end(), tail.begin(), tail.end());
  options.environment = base::current_environment();
  options.environment["LC_ALL"] = "C";
  base::Captured result = base::run_captured(options, "", kCompilePatience);
  bool compiled = result.status.ok() && !result.timed_out;
  if (compiled) {
    std::filesystem::rename(folder / "program", program, error);
  }
  std::filesystem::remove_all(folder, error);
  if (!compiled) {
    throw base::run_error("its driver does not compile: {}", first_error(result.errors));
  }
  if (::access(program.c_str(), X_OK) != 0) {
    throw base::run_error("{}: cannot be written; set XDG_CACHE_HOME to a writable folder",
                          program.string());
  }
  return program;
}

}  // namespace ljtrain::ljperf
