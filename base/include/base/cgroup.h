// Where the kernel keeps a process's limits: control groups, version 1 and 2.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ljtrain::base {

// Where the files of a controller are for a process.
struct Cgroup {
  std::string root;      // of the controller's hierarchy
  std::string path;      // below it, "/" or "/a/b"
  bool unified = false;  // version 2

  // The folders from the process's own up to the root.
  std::vector<std::string> folders() const;
};

// From /proc/self/cgroup: a v1 line "5:cpu,cpuacct:/a/b" for the controller, else v2's "0::/a/b".
// `mount` is where control groups are mounted (/sys/fs/cgroup); in the hybrid layout, where v1's
// controllers stand there, v2's tree is its folder "unified". In a container the path may be the
// host's: of the folders on the way up those that exist are the container's own.
std::optional<Cgroup> find_cgroup(const std::string& proc_cgroup, const std::string& mount,
                                  const std::string& controller);

}  // namespace ljtrain::base
