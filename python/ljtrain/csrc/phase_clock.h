// Books the training thread's time to one phase at a time.
//
// Phases nest: entering one pauses the one below, leaving it goes on with that one. Every instant
// belongs to exactly one phase, so by construction the phases of a lap sum to its length.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <vector>

namespace ljtrain {

enum class Phase : std::size_t { kData, kForward, kBackward, kCommunication, kOptimizer, kOther };
constexpr std::size_t kPhases = 6;

using PhaseSeconds = std::array<double, kPhases>;

// Used by one thread only, the one that called `start`; calls from other threads do nothing.
class PhaseClock {
 public:
  // Binds the clock to the calling thread and begins a lap in Phase::kOther.
  void start();
  void enter(Phase phase);
  void leave();
  // The seconds of each phase since the last lap (or the start), which ends the lap.
  PhaseSeconds lap();
  // While disabled, all time is booked to the phase that was current.
  void set_enabled(bool enabled) { enabled_.store(enabled, std::memory_order_relaxed); }

  static PhaseClock& instance();

 private:
  using Clock = std::chrono::steady_clock;

  bool counts() const;
  void book();

  std::vector<Phase> stack_;
  PhaseSeconds seconds_{};
  Clock::time_point last_;
  std::atomic<bool> enabled_{true};  // the only member that other threads touch
};

// The enclosing block's time, booked to one phase; an exception leaves the phase, too.
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase) { PhaseClock::instance().enter(phase); }
  ~PhaseScope() { PhaseClock::instance().leave(); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;
};

}  // namespace ljtrain
