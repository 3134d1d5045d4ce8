#include "benchmark/run_environment.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <optional>
#include <regex>

#include "base/errors.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::chrono::seconds kGitTimeout{5};

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string os_name() {
  std::ifstream stream("/etc/os-release");
  for (std::string line; std::getline(stream, line);) {
    constexpr std::string_view kKey = "PRETTY_NAME=";
    if (line.starts_with(kKey)) {
      line.erase(0, kKey.size());
      std::erase(line, '"');
      return line;
    }
  }
  return "unknown";
}

std::optional<std::string> git(const std::vector<std::string>& arguments) {
  base::SpawnOptions options;
  options.argv = {"git"};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.environment = base::current_environment();
  try {
    base::Captured captured = base::run_captured(options, "", kGitTimeout);
    if (captured.status.ok() && !captured.timed_out) {
      return captured.output;
    }
  } catch (const base::RunError&) {
    return std::nullopt;  // no git on this machine
  }
  return std::nullopt;
}

// The repository that the command was started in, if any.
std::optional<cnp::Git> git_state() {
  std::optional<std::string> commit = git({"rev-parse", "HEAD"});
  std::optional<std::string> changes =
      commit.has_value() ? git({"status", "--porcelain", "--untracked-files=no"}) : std::nullopt;
  if (!commit.has_value() || !changes.has_value()) {
    return std::nullopt;
  }
  cnp::Git state;
  state.commit = commit->substr(0, commit->find('\n'));
  state.dirty = !changes->empty();
  return state;
}

}  // namespace

std::string redact(const std::string& name, const std::string& value) {
  static constexpr std::array kWords{"TOKEN",  "SECRET", "PASS",    "CREDENTIAL", "AUTH",
                                     "COOKIE", "KEY",    "SESSION", "PRIVATE",    "SIGNATURE",
                                     "DSN",    "PWD",    "CRED",    "JWT",        "NETRC"};
  std::string shouted = upper(name);
  bool speaks = shouted != "PWD" && shouted != "OLDPWD" && shouted != "TOKENIZERS_PARALLELISM" &&
                std::any_of(kWords.begin(), kWords.end(), [&](const char* word) {
                  return shouted.find(word) != std::string::npos;
                });
  static const std::regex looks(
      R"((://[^/@\s]+@)|(AKIA[0-9A-Z]{16})|(\b(hf|ghp|gho|ghs|glpat|sk|xox[abp])[_-][A-Za-z0-9_-]{16,}))"
      R"(|(Bearer\s+\S+)|(-----BEGIN)|(\beyJ[A-Za-z0-9_-]{10,}\.))",
      std::regex::ECMAScript | std::regex::icase | std::regex::optimize);
  constexpr std::size_t kJudged = 65536;  // std::regex recurses: never give it a novel
  bool is_secret = speaks || value.size() > kJudged || std::regex_search(value, looks);
  return is_secret && !value.empty() ? kRedacted : value;
}

std::string redact_argument(const std::string& argument) {
  std::size_t equals = argument.find('=');
  constexpr std::string_view kSet = "--set=";
  if (argument.starts_with(kSet)) {
    equals = argument.find('=', kSet.size());
  }
  if (equals == std::string::npos) {
    return redact("", argument);
  }
  return argument.substr(0, equals + 1) +
         redact(argument.substr(0, equals), argument.substr(equals + 1));
}

base::OrderedJson redact_settings(base::OrderedJson settings) {
  for (auto& [key, value] : settings.items()) {
    if (value.is_string()) {
      value = redact(key, value.get<std::string>());
    }
  }
  return settings;
}

std::map<std::string, std::string> relevant_variables(const base::Environment& environment) {
  static constexpr std::array<std::string_view, 32> kPrefixes{
      "OMP_",          "KMP_",        "GOMP_",      "MKL_",           "OPENBLAS_",
      "DNNL_",         "ONEDNN_",     "NCCL_",      "ACCL_",          "GLOO_",
      "TORCH",         "PYTORCH_",    "LJTRAIN_",   "CHECKPOINT_",    "CUDA_",
      "NVIDIA_",       "DS_",         "DEEPSPEED_", "ACCELERATE_",    "HF_",
      "TRANSFORMERS_", "TOKENIZERS_", "PYTHON",     "LD_PRELOAD",     "LD_LIBRARY_PATH",
      "MALLOC_",       "JEMALLOC_",   "TCMALLOC_",  "GLIBC_TUNABLES", "FSDP_",
      "ATEN_",         "TRITON_"};
  std::map<std::string, std::string> relevant;
  for (const auto& [name, value] : environment) {
    bool matters = std::any_of(kPrefixes.begin(), kPrefixes.end(),
                               [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (matters) {
      relevant[name] = redact(name, value);
    }
  }
  return relevant;
}

cnp::Environment describe_environment(const Hardware& hardware,
                                      const std::map<std::string, std::string>& versions) {
  utsname kernel{};
  ::uname(&kernel);
  cnp::Environment environment;
  environment.hardware.cpu_model = hardware.cpu_model;
  environment.hardware.cores = static_cast<int>(hardware.cores.size());
  environment.hardware.memory_bytes = hardware.memory_bytes;
  environment.hardware.numa_nodes = hardware.numa_nodes;
  environment.hardware.extra["cpu_flags"] = hardware.cpu_flags;
  environment.hardware.extra["machine"] = kernel.machine;
  environment.hardware.extra["cgroup_limit_bytes"] = hardware.to_json()["cgroup_limit_bytes"];
  for (const Gpu& gpu : hardware.gpus) {
    cnp::Gpu entry;
    entry.name = gpu.name;
    entry.memory_bytes = gpu.memory_bytes;
    environment.hardware.gpus.push_back(entry);
  }
  environment.os = os_name();
  environment.kernel = kernel.release;
  environment.versions = versions;
  environment.git = git_state();
  return environment;
}

base::OrderedJson dump_environment(const Hardware& hardware, const base::Json& preflight_answer) {
  utsname kernel{};
  ::uname(&kernel);
  base::OrderedJson variables = base::OrderedJson::object();
  for (const auto& [name, value] : base::current_environment()) {
    variables[name] = redact(name, value);
  }
  base::OrderedJson dump;
  dump["schema_version"] = 1;
  dump["ljperf"] = LJTRAIN_VERSION;
  dump["hardware"] = hardware.to_json();
  dump["os"] = os_name();
  dump["kernel"] = kernel.release;
  dump["machine"] = kernel.machine;
  dump["python"] = preflight_answer;
  std::optional<cnp::Git> state = git_state();
  dump["git"] = nullptr;
  if (state.has_value()) {
    dump["git"] = {{"commit", state->commit}, {"dirty", state->dirty}};
  }
  dump["variables"] = variables;
  return dump;
}

}  // namespace ljtrain::ljperf
