// Watching a peer's process: is it alive, is it stopped. One pidfd per process and peer, shared by
// all communicators.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace ljtrain::accl {

// Field 22 of /proc/PID/stat (clock ticks after boot); 0 when there is no such process. Tells a
// reused pid.
std::uint64_t process_start_time(int pid);
// 'R', 'S', 'T', ...: field 3 of /proc/PID/stat; 0 when there is no such process.
char process_state(int pid);

class PeerProcess {
 public:
  // Shared: the same object for the same process while anybody holds it.
  static std::shared_ptr<PeerProcess> watch(int pid, std::uint64_t start_time);
  PeerProcess(int pid, std::uint64_t start_time);
  // Zombies count as dead.
  bool is_alive() const;
  int pid() const { return pid_; }

 private:
  int pid_;
  std::uint64_t start_time_;
  base::UniqueFd pidfd_;  // none where the kernel has no pidfd_open: /proc is asked instead
};

}  // namespace ljtrain::accl
