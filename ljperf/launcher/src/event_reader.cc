#include "event_reader.h"

#include <unistd.h>

#include <array>
#include <cerrno>

namespace ljtrain::ljperf {
namespace {
constexpr std::size_t kLongestEvent = std::size_t{1} << 20;
}

void EventReader::read(const std::function<void(const base::Json&)>& on_event) {
  std::array<char, 65536> buffer{};
  while (fd_) {
    ssize_t count = ::read(fd_.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && errno == EAGAIN) {
      return;
    }
    if (count <= 0) {
      fd_.reset();
      return;
    }
    partial_.append(buffer.data(), static_cast<std::size_t>(count));
    std::size_t start = 0;
    for (std::size_t end = 0; (end = partial_.find('\n', start)) != std::string::npos;
         start = end + 1) {
      base::Json event = base::Json::parse(partial_.begin() + static_cast<std::ptrdiff_t>(start),
                                           partial_.begin() + static_cast<std::ptrdiff_t>(end),
                                           nullptr, /*allow_exceptions=*/false);
      if (event.is_object() && event.contains("event") && event["event"].is_string()) {
        on_event(event);
      }
    }
    partial_.erase(0, start);
    if (partial_.size() > kLongestEvent) {
      partial_.clear();
    }
  }
}

}  // namespace ljtrain::ljperf
