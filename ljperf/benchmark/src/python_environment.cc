#include "benchmark/python_environment.h"

#include <unistd.h>

#include <sstream>

#include "base/errors.h"
#include "base/process.h"
#include "launcher/rank_command.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::chrono::seconds kPreflightTimeout{30};

// The last line of a Python error says what it was; the traceback above it is for --verbose.
std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      last = line;
    }
  }
  return last;
}

}  // namespace

std::filesystem::path find_python(const std::filesystem::path& wanted) {
  std::error_code error;
  if (!wanted.empty()) {
    bool found = wanted.has_parent_path() ? ::access(wanted.c_str(), X_OK) == 0
                                          : !program_in_path(wanted.string()).empty();
    if (!found) {
      throw base::user_error("--python {}: no such program", wanted.string());
    }
    return wanted;
  }
  std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* name : {"python", "python3"}) {
    std::filesystem::path beside = self.parent_path() / name;
    if (!error && ::access(beside.c_str(), X_OK) == 0) {
      return beside;
    }
  }
  return "python3";
}

base::Json ask_environment(const std::filesystem::path& python, const base::Json& request) {
  base::SpawnOptions options;
  options.argv = {python.string(), "-m", "ljtrain.preflight"};
  options.environment = base::current_environment();
  options.environment["PYTHONSAFEPATH"] =
      "1";  // not a folder `ljtrain` where the command was typed
  base::Captured captured;
  try {
    captured = base::run_captured(options, request.dump(), kPreflightTimeout);
  } catch (const base::RunError& error) {
    throw base::user_error("{}; choose another with --python, or run `make set-up`", error.what());
  }
  // The last line: a sitecustomize may print before it.
  base::Json answer =
      base::Json::parse(last_line(captured.output), nullptr, /*allow_exceptions=*/false);
  if (captured.timed_out || !answer.is_object() || !answer.contains("problems")) {
    throw base::user_error(
        "the Python environment {} is broken: {}; run `make set-up` (or `pip install "
        "--no-build-isolation .` "
        "there), or choose another with --python",
        python.string(),
        captured.timed_out        ? "it did not answer within 30 s"
        : captured.errors.empty() ? "it gave no answer"
                                  : last_line(captured.errors));
  }
  return answer;
}

base::Json preflight(const std::filesystem::path& python, const base::Json& request) {
  base::Json answer = ask_environment(python, request);
  if (!answer["problems"].empty()) {
    throw base::UserError(answer["problems"][0].get<std::string>());
  }
  return answer;
}

}  // namespace ljtrain::ljperf
