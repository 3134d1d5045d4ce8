// Reading lines that programs print for people.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace ljtrain::cnp {

// Calls `visit` for each line of `text`, without line ends, colours (ANSI escape sequences) and NUL
// bytes. Lines longer than 64 KiB are passed over: no program here prints such.
void for_each_line(std::string_view text, const std::function<void(std::string_view)>& visit);

std::string_view trimmed(std::string_view text);

// The number at the start of `text` after blanks: "42,332" (with `commas`), "-1.5E+00", "nan",
// "inf". nullopt when there is none.
std::optional<double> leading_number(std::string_view text, bool commas = false);

// The number after the first `name` in the line that starts a word: number_after("step: 7", "step:").
std::optional<double> number_after(std::string_view line, std::string_view name,
                                   bool commas = false);

// The value as a count from `least` to 2^53 - 1; nullopt when it is no whole number in there.
std::optional<std::int64_t> as_count(std::optional<double> value, std::int64_t least = 0);

// The text between two marks; empty when either is missing.
std::string_view between(std::string_view line, std::string_view before, std::string_view after);

}  // namespace ljtrain::cnp
