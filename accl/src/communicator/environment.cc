#include "communicator/environment.h"

#include <strings.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "accl/error.h"

namespace ljtrain::accl::environment {
namespace {

constexpr std::chrono::seconds kDefaultTimeout{1800};

// The value without blanks around it; empty: not set.
std::string_view value_of(const char* name) {
  const char* text = std::getenv(name);
  std::string_view value = text == nullptr ? "" : text;
  while (value.starts_with(' ')) {
    value.remove_prefix(1);
  }
  while (value.ends_with(' ')) {
    value.remove_suffix(1);
  }
  return value;
}

bool equals(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

std::uint64_t bytes(const char* name, std::uint64_t otherwise, std::uint64_t least,
                    std::uint64_t most) {
  const std::string_view value = value_of(name);
  if (value.empty()) {
    return otherwise;
  }
  constexpr std::array<std::pair<std::string_view, unsigned>, 9> kUnits = {{{"", 0},
                                                                            {"B", 0},
                                                                            {"K", 10},
                                                                            {"KiB", 10},
                                                                            {"M", 20},
                                                                            {"MiB", 20},
                                                                            {"G", 30},
                                                                            {"GiB", 30},
                                                                            {"bytes", 0}}};
  std::uint64_t number = 0;
  const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (failure == std::errc()) {
    std::string_view unit(end, static_cast<std::size_t>(value.data() + value.size() - end));
    unit.remove_prefix(unit.starts_with(' ') ? 1 : 0);
    for (const auto& [text, shift] : kUnits) {
      if (equals(unit, text) && number <= (most >> shift) && (number << shift) >= least) {
        return number << shift;
      }
    }
  }
  throw error(ErrorCode::kInvalidArgument,
              "{}={}: write a number of bytes from {} to {}, as in {}=262144 or 256KiB", name,
              value, least, most, name);
}

bool is_on(const char* name) {
  const std::string_view value = value_of(name);
  for (const std::string_view yes : {"1", "true", "yes", "on"}) {
    if (equals(value, yes)) {
      return true;
    }
  }
  for (const std::string_view no : {"", "0", "false", "no", "off"}) {
    if (equals(value, no)) {
      return false;
    }
  }
  throw error(ErrorCode::kInvalidArgument, "{}={}: write 1 or 0", name, value);
}

std::chrono::nanoseconds timeout() {
  const std::string_view value = value_of("ACCL_TIMEOUT");
  if (value.empty()) {
    return kDefaultTimeout;
  }
  double seconds = 0;
  const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  const double longest = std::chrono::duration<double>(kLongestTimeout).count();
  if (failure != std::errc() || end != value.data() + value.size() ||
      !(seconds > 0 && seconds <= longest)) {
    throw error(ErrorCode::kInvalidArgument,
                "ACCL_TIMEOUT={}: write seconds, more than 0 and at most {:.0f}, as in "
                "ACCL_TIMEOUT=600",
                value, longest);
  }
  return std::chrono::round<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace ljtrain::accl::environment
