// Lines of JSON from a pipe.
#pragma once

#include <functional>
#include <string>

#include "base/json.h"
#include "base/unique_fd.h"

namespace ljtrain::ljperf {

class EventReader {
 public:
  explicit EventReader(base::UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  bool closed() const { return !fd_; }
  // Reads what is there, without waiting, and hands on each whole event. A line that is no event
  // (not JSON, no "event") is skipped: a worker's bug must not end the launcher.
  void read(const std::function<void(const base::Json&)>& on_event);

 private:
  base::UniqueFd fd_;
  std::string partial_;
};

}  // namespace ljtrain::ljperf
