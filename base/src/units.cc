#include "base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/errors.h"

namespace ljtrain::base {
namespace {

constexpr double kKibi = 1024.0;

// Factor of a unit such as "gib" (lower case); 0 when there is none of that name.
double byte_factor(std::string_view unit) {
  static constexpr std::array<std::pair<std::string_view, double>, 14> kFactors{{
      {"", 1},
      {"b", 1},
      {"k", kKibi},
      {"kib", kKibi},
      {"kb", 1e3},
      {"m", kKibi * kKibi},
      {"mib", kKibi * kKibi},
      {"mb", 1e6},
      {"g", kKibi * kKibi * kKibi},
      {"gib", kKibi * kKibi * kKibi},
      {"gb", 1e9},
      {"t", kKibi * kKibi * kKibi * kKibi},
      {"tib", kKibi * kKibi * kKibi * kKibi},
      {"tb", 1e12},
  }};
  for (const auto& [name, factor] : kFactors) {
    if (name == unit) {
      return factor;
    }
  }
  return 0;
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text) {
  constexpr double kLargest = 9e18;
  double value = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, value);
  std::string unit;
  for (const char* c = rest; c != end; ++c) {
    if (*c != ' ') {
      unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
    }
  }
  double bytes = value * byte_factor(unit);
  if (error != std::errc() || byte_factor(unit) == 0 || !(bytes >= 0) || bytes > kLargest) {
    throw user_error("`{}` is not a size: write a number and a unit, as in 20GiB or 512MB", text);
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string format_bytes(double bytes) {
  static constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= kKibi && unit + 1 < kUnits.size()) {
    bytes /= kKibi;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string format_count(double count) {
  static constexpr std::array<std::pair<double, const char*>, 4> kScales{
      {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}}};
  for (const auto& [scale, name] : kScales) {
    if (std::abs(count) >= scale) {
      return fmt::format("{:.2f} {}", count / scale, name);
    }
  }
  return fmt::format("{:.0f}", count);
}

std::string format_seconds(double seconds) {
  if (seconds < 0) {
    return fmt::format("-{}", format_seconds(-seconds));
  }
  if (seconds == 0) {
    return "0 s";
  }
  if (seconds < 1e-3) {
    return fmt::format("{:.1f} us", seconds * 1e6);
  }
  if (seconds < 1) {
    return fmt::format("{:.1f} ms", seconds * 1e3);
  }
  if (seconds < 60) {
    return fmt::format("{:.2f} s", seconds);
  }
  long whole = std::lround(seconds);
  if (whole < 3600) {
    return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
  }
  return fmt::format("{} h {:02d} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace ljtrain::base
