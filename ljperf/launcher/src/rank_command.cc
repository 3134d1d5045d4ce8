#include "launcher/rank_command.h"

#include <unistd.h>

#include <sstream>

#include "base/json.h"

namespace ljtrain::ljperf {

std::vector<std::string> rank_argv(const RankCommand& command) {
  base::OrderedJson task = {{"argv", command.argv}};
  if (!command.log_folder.empty()) {
    task["log"] = command.log_folder.string();
  }
  return {command.ljperf.string(), "rank", task.dump()};
}

std::filesystem::path this_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::filesystem::path program_in_path(const std::string& name) {
  const base::Environment environment = base::current_environment();
  auto path = environment.find("PATH");
  std::istringstream folders(path == environment.end() ? "/usr/local/bin:/usr/bin:/bin"
                                                       : path->second);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::filesystem::path candidate = std::filesystem::path(folder) / name;
    std::error_code error;
    if (::access(candidate.c_str(), X_OK) == 0 &&
        !std::filesystem::is_directory(candidate, error)) {
      return candidate;
    }
  }
  return {};
}

}  // namespace ljtrain::ljperf
