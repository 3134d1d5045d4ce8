#include "phase_clock.h"

#include <utility>

namespace ljtrain {
namespace {

constexpr std::size_t kUsualDepth = 16;
thread_local bool is_training_thread = false;

}  // namespace

void PhaseClock::start() {
  is_training_thread = true;
  stack_.reserve(kUsualDepth);
  stack_.assign(1, Phase::kOther);
  seconds_ = {};
  last_ = Clock::now();
}

bool PhaseClock::counts() const {
  return is_training_thread && enabled_.load(std::memory_order_relaxed);
}

void PhaseClock::book() {
  const Clock::time_point now = Clock::now();
  seconds_[static_cast<std::size_t>(stack_.back())] +=
      std::chrono::duration<double>(now - last_).count();
  last_ = now;
}

void PhaseClock::enter(Phase phase) {
  if (!counts()) {
    return;
  }
  book();
  stack_.push_back(phase);
}

void PhaseClock::leave() {
  // The lowest entry belongs to `start`: a scope entered before it, or while disabled, has nothing
  // to leave.
  if (!counts() || stack_.size() == 1) {
    return;
  }
  book();
  stack_.pop_back();
}

PhaseSeconds PhaseClock::lap() {
  if (!is_training_thread) {
    return {};
  }
  book();
  return std::exchange(seconds_, PhaseSeconds{});
}

PhaseClock& PhaseClock::instance() {
  static PhaseClock clock;
  return clock;
}

}  // namespace ljtrain
