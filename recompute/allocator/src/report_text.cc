#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "allocator/report.h"
#include "base/units.h"

namespace ljtrain::recompute {
namespace {

constexpr std::size_t kOwnerWidth = 46;
constexpr std::size_t kSettingsWidth = 32;

std::string size(std::int64_t bytes) { return base::format_bytes(static_cast<double>(bytes)); }

// 1234567 -> "1,234,567".
std::string grouped(std::int64_t count) {
  std::string digits = std::to_string(count);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (count < 0 ? 1 : 0);
       at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// The end of a long name says more than its start.
std::string shortened(const std::string& name, std::size_t width) {
  return name.size() <= width ? name : "..." + name.substr(name.size() - (width - 3));
}

std::string settings_name(const std::string& text) {
  return text.empty() ? "PyTorch's defaults" : text;
}

class Writer {
 public:
  Writer(const MemoryReport& report, int top)
      : report_(report), recorded_(report.snapshot.recorded), top_(top) {}

  std::string write() {
    head();
    owners();
    failures();
    table();
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  void head() {
    const MemorySnapshot& snapshot = report_.snapshot;
    line("{}: device {} of {}, {} events", report_.file, snapshot.device,
         std::max<std::size_t>(1, snapshot.events_per_device.size()),
         grouped(static_cast<std::int64_t>(snapshot.trace.events.size())));
    line("  settings      {}", settings_name(snapshot.settings));
    if (!snapshot.settings_problem.empty()) {
      line("                (the file's could not be taken: {})", snapshot.settings_problem);
    }
    line("  peak          {} asked for, at event {}", size(recorded_.peak_live),
         grouped(recorded_.peak_live_event));
    std::int64_t idle = recorded_.peak_reserved - recorded_.live_at_peak_reserved;
    line("  reserved      {} at most, {} ({}) of it in no use then", size(recorded_.peak_reserved),
         size(idle), percent(share(idle, recorded_.peak_reserved)));
    if (report_.limit) {
      line("  limit         {}{}", size(*report_.limit),
           report_.limit_from_trace ? ", as the first out-of-memory error shows" : "");
    }
    if (snapshot.live_before > 0) {
      line("  before        {} allocations are older than the recording",
           grouped(snapshot.live_before));
    }
    if (snapshot.left_out > 0) {
      line("  left out      {} events that contradict others", grouped(snapshot.left_out));
    }
  }

  void owners() {
    line("\n{:<{}} {:>11} {:>11} {:>7}", "WHO HOLDS THE PEAK", kOwnerWidth, "ALLOCATIONS", "BYTES",
         "SHARE");
    std::int64_t rest = 0;
    std::int64_t rest_allocations = 0;
    for (std::size_t i = 0; i < report_.owners.size(); ++i) {
      const OwnedBytes& owner = report_.owners[i];
      if (static_cast<int>(i) < top_) {
        owner_line(report_.snapshot.trace.owners[owner.owner], owner.allocations, owner.bytes);
      } else {
        rest += owner.bytes;
        rest_allocations += owner.allocations;
      }
    }
    if (rest_allocations > 0) {
      owner_line(fmt::format("{} others", report_.owners.size() - static_cast<std::size_t>(top_)),
                 rest_allocations, rest);
    }
  }

  void owner_line(const std::string& name, std::int64_t allocations, std::int64_t bytes) {
    line("{:<{}} {:>11} {:>11} {:>7}", shortened(name, kOwnerWidth), kOwnerWidth,
         grouped(allocations), size(bytes), percent(share(bytes, recorded_.peak_live)));
  }

  void failures() {
    if (recorded_.failures.empty()) {
      return;
    }
    line("\nOUT OF MEMORY, {} in the trace", recorded_.failures.size());
    for (std::size_t i = 0; i < recorded_.failures.size() && static_cast<int>(i) < top_; ++i) {
      const RecordedFailure& failure = recorded_.failures[i];
      line("event {}: {} asked for by {}", grouped(failure.event), size(failure.requested),
           report_.snapshot.trace.owners[failure.owner]);
      line("  {} reserved, {} of it in use, {} left on the device", size(failure.reserved),
           size(failure.live), size(failure.device_free));
      line("  {}", cause_of(failure));
    }
  }

  void table() {
    line("\nWHAT OTHER SETTINGS GIVE: simulated, {}", kUnverified);
    line("{:<{}} {:>11} {:>9} {:>7} {}", "", kSettingsWidth, "RESERVED", "IN NO USE", "FLUSHES",
         "RESULT");
    std::int64_t idle = recorded_.peak_reserved - recorded_.live_at_peak_reserved;
    line("{:<{}} {:>11} {:>9} {:>7} {}", "as recorded, not simulated", kSettingsWidth,
         size(recorded_.peak_reserved), percent(share(idle, recorded_.peak_reserved)), "",
         recorded_.failures.empty() ? "ran" : "out of memory");
    row(settings_name(report_.as_recorded.settings.text), report_.as_recorded);
    for (const SimulatedSetting& simulated : report_.others) {
      row(settings_name(simulated.settings.text), simulated);
    }
    if (auto error = report_.reserved_error()) {
      line("Simulated peak of the program's own settings: {:+.1f} % off the recorded one.",
           100 * *error);
    }
    notes(report_.as_recorded);
    for (const SimulatedSetting& simulated : report_.others) {
      notes(simulated);
    }
  }

  void row(const std::string& name, const SimulatedSetting& simulated) {
    const Replay& replay = simulated.replay;
    std::string result = "runs";
    if (replay.failure) {
      result = "out of memory";
    } else if (!recorded_.failures.empty()) {
      result =
          replay.served == static_cast<std::int64_t>(recorded_.failures.size())
              ? "runs"
              : fmt::format("fails {} of {}",
                            static_cast<std::int64_t>(recorded_.failures.size()) - replay.served,
                            recorded_.failures.size());
    }
    if (name.size() > kSettingsWidth) {
      line("{}", name);
    }
    line("{:<{}} {:>11} {:>9} {:>7} {}", name.size() > kSettingsWidth ? "" : name, kSettingsWidth,
         size(replay.stats.peak_reserved), percent(replay.at_peak_reserved.fragmentation()),
         replay.stats.cache_flushes, result);
  }

  void notes(const SimulatedSetting& simulated) {
    std::string name = settings_name(simulated.settings.text);
    if (simulated.replay.failure) {
      line("{}: at event {}, {}", name, grouped(simulated.replay.failed_event),
           simulated.replay.failure->reason());
    }
    std::vector<std::string> idle = simulated.settings.without_effect;
    if (!idle.empty()) {
      line("{}: without effect here: {}", name, fmt::join(idle, ", "));
    }
  }

  const MemoryReport& report_;
  const RecordedMemory& recorded_;
  int top_;
  std::string text_;
};

}  // namespace

std::string report_text(const MemoryReport& report, int top) { return Writer(report, top).write(); }

}  // namespace ljtrain::recompute
