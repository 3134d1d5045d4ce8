// Ctrl-C and its like as something to wait for, instead of an end in the middle of things.
#pragma once

#include <signal.h>

#include "base/unique_fd.h"

namespace ljtrain::base {

// While one lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT do not end the process but become readable,
// and a broken pipe is an error of the write instead of SIGPIPE. Make it on the main thread, before
// others start; children do not inherit it (ChildProcess undoes it).
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Readable (poll) when one has arrived.
  int fd() const { return fd_.get(); }
  // Takes one that has arrived, if any.
  bool arrived() const;

 private:
  sigset_t set_{};
  sigset_t before_{};
  struct sigaction pipe_before_{};
  UniqueFd fd_;
};

}  // namespace ljtrain::base
