// Printing in the middle of a run: whatever becomes of the terminal or the pipe, the run goes on.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace ljtrain::ljperf {

// As fmt::print, but a write that fails is only told by the result. Flushes.
template <typename... Args>
bool say(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  std::string text = fmt::format(format, std::forward<Args>(args)...);
  return std::fwrite(text.data(), 1, text.size(), stream) == text.size() &&
         std::fflush(stream) == 0;
}

}  // namespace ljtrain::ljperf
