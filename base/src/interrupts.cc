#include "base/interrupts.h"

#include <sys/signalfd.h>

namespace ljtrain::base {

Interrupts::Interrupts() {
  sigemptyset(&set_);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    sigaddset(&set_, number);
  }
  ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &pipe_before_);
  fd_.reset(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
}

Interrupts::~Interrupts() {
  while (arrived()) {  // a second Ctrl-C while the first was answered ends nothing twice
  }
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool Interrupts::arrived() const {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof info) == sizeof info;
}

}  // namespace ljtrain::base
