#include "base/cgroup.h"

#include <filesystem>
#include <sstream>

namespace ljtrain::base {

std::vector<std::string> Cgroup::folders() const {
  std::vector<std::string> all;
  for (std::string rest = path; !rest.empty() && rest.rfind('/') != std::string::npos;
       rest = rest.substr(0, rest.rfind('/'))) {
    if (rest != "/") {
      all.push_back(root + rest);
    }
  }
  all.push_back(root);
  return all;
}

std::optional<Cgroup> find_cgroup(const std::string& proc_cgroup, const std::string& mount,
                                  const std::string& controller) {
  std::optional<Cgroup> unified;
  std::istringstream lines(proc_cgroup);
  for (std::string line; std::getline(lines, line);) {
    std::size_t first = line.find(':');
    std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (controllers.find("," + controller + ",") != std::string::npos) {
      return Cgroup{mount + "/" + controller, path, false};
    }
    if (controllers == ",,") {
      std::error_code none;
      bool hybrid = std::filesystem::is_directory(mount + "/unified", none);
      unified = Cgroup{hybrid ? mount + "/unified" : mount, path, true};
    }
  }
  return unified;
}

}  // namespace ljtrain::base
