#include "filter_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <string_view>

#include "base/errors.h"
#include "base/text.h"
#include "cnp/record_file.h"

namespace ljtrain::cnp {
namespace {

constexpr std::array<std::string_view, 3> kStatuses = {"completed", "interrupted", "failed"};
constexpr std::array<std::string_view, 2> kKinds = {"benchmark", "collectives"};

template <std::size_t count>
void require_one_of(const char* option, const std::string& value,
                    const std::array<std::string_view, count>& known) {
  if (value.empty() || std::find(known.begin(), known.end(), value) != known.end()) return;
  throw base::user_error("{} {}: must be one of {}", option, base::printable(value),
                         fmt::join(known, ", "));
}

// "7d" -> seconds; 0 when it is no such thing.
std::int64_t seconds_of(std::string_view text) {
  std::int64_t count = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  constexpr std::int64_t kMost = 1'000'000;
  if (error != std::errc() || end != text.data() + text.size() - 1 || count < 1 || count > kMost) {
    return 0;
  }
  switch (*end) {
    case 'm':
      return count * 60;
    case 'h':
      return count * 3'600;
    case 'd':
      return count * 86'400;
    case 'w':
      return count * 604'800;
    default:
      return 0;
  }
}

std::optional<std::string> some(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

}  // namespace

std::string parse_time(const std::string& option, const std::string& text,
                       std::chrono::system_clock::time_point now) {
  if (std::int64_t ago = seconds_of(text); ago > 0) {
    return iso8601_utc(now - std::chrono::seconds(ago));
  }
  for (const char* format : {"%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M",
                             "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    std::tm time{};
    const char* end = ::strptime(text.c_str(), format, &time);
    if (end == nullptr || *end != '\0') continue;
    std::tm same = time;
    std::time_t seconds = ::timegm(&same);
    if (same.tm_mday != time.tm_mday) break;  // the 31st of a month of 30 days
    return iso8601_utc(std::chrono::system_clock::from_time_t(seconds));
  }
  throw base::user_error(
      "{} {}: write a time in UTC such as 2026-11-30 or 2026-11-30T12:01, or how long ago such as "
      "90m, 12h, 7d or 2w",
      option, base::printable(text));
}

void add_filter_options(CLI::App& command, FilterOptions& options) {
  command.add_option("--model", options.model, "Of this model: MODEL or ENGINE/MODEL");
  command.add_option("--engine", options.engine, "Of this engine: deepspeed, fsdp, ddp, ...");
  command.add_option("--tag", options.tag, "With this tag");
  command.add_option("--status", options.status, "completed, interrupted or failed");
  command.add_option("--kind", options.kind, "benchmark or collectives");
  command.add_option("--since", options.since, "Created since: 2026-11-30, 12h, 7d");
  command.add_option("--before", options.before, "Created before: 2026-11-30, 12h, 7d");
}

Filter filter_of(const FilterOptions& options) {
  require_one_of("--status", options.status, kStatuses);
  require_one_of("--kind", options.kind, kKinds);
  auto now = std::chrono::system_clock::now();
  Filter filter;
  filter.model = some(options.model);
  filter.engine = some(options.engine);
  if (std::size_t slash = options.model.find('/'); slash != std::string::npos) {
    std::string engine = options.model.substr(0, slash);
    if (filter.engine && *filter.engine != engine) {
      throw base::user_error("--model {} and --engine {} name two engines: choose one",
                             base::printable(options.model), base::printable(options.engine));
    }
    filter.engine = engine;
    filter.model = options.model.substr(slash + 1);
  }
  filter.tag = some(options.tag);
  filter.status = some(options.status);
  filter.kind = some(options.kind);
  if (!options.since.empty()) filter.since = parse_time("--since", options.since, now);
  if (!options.before.empty()) filter.before = parse_time("--before", options.before, now);
  return filter;
}

}  // namespace ljtrain::cnp
