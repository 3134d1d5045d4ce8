#include "measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "comm/sizes.h"

namespace ljtrain::ljperf {
namespace {

using std::chrono::milliseconds;

constexpr std::array kVariants{Variant{false, false}, Variant{true, false}, Variant{false, true},
                               Variant{true, true}};
constexpr double kTrialSeconds = 2e-3;
constexpr long kMostIterations = 200'000;
// From here on an operation is its own warm-up: its buffers fit into no cache that a warm-up could
// fill.
constexpr double kNoWarmup = 20e-3;

// One library and way to call it, of one operation and size.
class Contender {
 public:
  Contender(PeerGroup& group, const Case& subject, Variant variant, const CommOptions& options,
            const base::Interrupts& interrupts)
      : group_(group), options_(options), interrupts_(interrupts) {
    row.library = group.library().name;
    row.interface = group.library().interface;
    row.op = subject.op;
    row.dtype = subject.dtype;
    row.ranks = subject.ranks;
    row.in_place = variant.in_place;
    row.registered = variant.registered;
    std::size_t count =
        ljperf_comm::count_of(subject.op, subject.dtype, subject.bytes, subject.ranks);
    row.bytes = ljperf_comm::bytes_of(subject.op, subject.dtype, count, subject.ranks);
    ljperf_comm::Op op = subject.op;
    if (row.library == "memcpy") {  // copies the whole buffer, whatever shares the operation has
      op = ljperf_comm::Op::kAllReduce;
      count = row.bytes / ljperf_comm::size_of(subject.dtype);
    }
    call_ = fmt::format("{} {} {} {} {}", ljperf_comm::kOpNames[static_cast<int>(op)],
                        ljperf_comm::kTypeNames[static_cast<int>(subject.dtype)], count,
                        static_cast<int>(variant.in_place), static_cast<int>(variant.registered));
    doing_ = fmt::format("{} of {} {}", ljperf_comm::kOpNames[static_cast<int>(subject.op)],
                         exact_bytes(row.bytes),
                         ljperf_comm::kTypeNames[static_cast<int>(subject.dtype)]);
  }

  void check() {
    std::uint64_t wrong = 0;
    for (const std::string& answer : ask("check " + call_)) {
      wrong += parse<std::uint64_t>(answer);
    }
    row.wrong = wrong;
  }

  // How many operations fill a block.
  void calibrate() {
    time(1, 1);  // touches the memory, lets the library set up what it needs
    double once = time(0, 1);
    auto trial = static_cast<long>(std::clamp(kTrialSeconds / once, 1.0, 1000.0));
    once = trial > 1 ? time(1, trial) : once;
    row.iterations =
        std::clamp(static_cast<long>(options_.min_time * 1e-3 / once), 1L, kMostIterations);
    warmup_ = once > kNoWarmup ? 0 : std::max(1L, row.iterations / 10);
  }

  void block() { row.blocks.push_back(time(warmup_, row.iterations)); }

  CommRow row;

 private:
  // Seconds of one operation on the slowest rank.
  double time(long warmup, long iterations) {
    double slowest = 0;
    for (const std::string& answer : ask(fmt::format("time {} {} {}", call_, warmup, iterations))) {
      slowest = std::max(slowest, parse<double>(answer));
    }
    constexpr double kClock = 1e-9;
    return std::max(slowest, kClock) / static_cast<double>(iterations);
  }

  std::vector<std::string> ask(const std::string& line) {
    return group_.ask(line, doing_, milliseconds(std::lround(options_.timeout * 1e3)), interrupts_);
  }

  template <typename Number>
  static Number parse(const std::string& text) {
    Number value{};
    auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) {
      throw base::run_error("a rank answered `{}`", text);
    }
    return value;
  }

  PeerGroup& group_;
  const CommOptions& options_;
  const base::Interrupts& interrupts_;
  std::string call_;
  std::string doing_;
  long warmup_ = 1;
};

}  // namespace

bool supports_any(const Library& library, ljperf_comm::Op op, ljperf_comm::Type dtype) {
  return std::any_of(kVariants.begin(), kVariants.end(),
                     [&](Variant variant) { return library.supports(op, dtype, variant); });
}

std::vector<CommRow> measure(const Case& subject, const std::vector<PeerGroup*>& groups,
                             const CommOptions& options, std::mt19937& order,
                             const base::Interrupts& interrupts) {
  std::vector<Contender> contenders;
  for (PeerGroup* group : groups) {
    for (Variant variant : kVariants) {
      if (group->library().supports(subject.op, subject.dtype, variant)) {
        contenders.emplace_back(*group, subject, variant, options, interrupts);
      }
    }
  }
  for (Contender& contender : contenders) {
    if (options.check && contender.row.library != "memcpy") {
      contender.check();
    }
    contender.calibrate();
  }
  std::vector<std::size_t> turns(contenders.size());
  std::iota(turns.begin(), turns.end(), std::size_t{0});
  for (int round = 0; round < options.blocks; ++round) {
    std::shuffle(turns.begin(), turns.end(), order);
    for (std::size_t turn : turns) {
      contenders[turn].block();
    }
  }
  std::vector<CommRow> rows;
  for (Contender& contender : contenders) {
    rows.push_back(std::move(contender.row));
  }
  compare(rows);
  return rows;
}

}  // namespace ljtrain::ljperf
