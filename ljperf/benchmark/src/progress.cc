#include "benchmark/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/units.h"
#include "output.h"

namespace ljtrain::ljperf {
namespace {

constexpr std::chrono::milliseconds kTerminalInterval{100};
constexpr std::chrono::seconds kPlainInterval{10};
constexpr std::size_t kWidest = 100;
// Weight of the newest step in the running mean that the time left is estimated from.
constexpr double kNewest = 0.3;

bool is_terminal() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) != 0 && (kind == nullptr || std::string_view(kind) != "dumb");
}

std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return std::min<std::size_t>(kWidest, size.ws_col);
  }
  return kWidest;
}

}  // namespace

Progress::Progress(int runs, int steps)
    : runs_(runs),
      steps_(steps),
      terminal_(is_terminal()),
      width_(terminal_width()),
      phase_start_(Clock::now()),
      run_start_(Clock::now()) {}

Progress::~Progress() { finish(); }

void Progress::start_run(int run) {
  run_ = run;
  done_steps_ = 0;
  run_start_ = Clock::now();
  phase("starting");
}

void Progress::phase(const std::string& name) {
  if (name == phase_ && done_steps_ == 0) {
    return;
  }
  phase_ = name;
  phase_start_ = Clock::now();
  show(line());
}

void Progress::step(int step, double seconds, double loss, double tokens_per_s) {
  if (done_steps_ == 0 && run_ == 0) {
    start_up_s_ = std::chrono::duration<double>(Clock::now() - run_start_).count() - seconds;
  }
  done_steps_ = step + 1;
  recent_step_s_ = step < 2 ? seconds : kNewest * seconds + (1 - kNewest) * recent_step_s_;
  loss_ = loss;
  tokens_per_s_ = tokens_per_s;
  if (!terminal_ &&
      (step == 0 || done_steps_ == steps_ || Clock::now() - last_shown_ >= kPlainInterval)) {
    show(line());
  }
}

void Progress::tick() {
  if (terminal_ && Clock::now() - last_shown_ >= kTerminalInterval) {
    show(line());
  }
}

void Progress::finish() {
  if (line_open_) {
    say(stderr, "\r\033[K");
    line_open_ = false;
  }
}

double Progress::seconds_left() const {
  double this_run = recent_step_s_ * (steps_ - done_steps_);
  double others = (runs_ - run_ - 1) * (start_up_s_ + recent_step_s_ * steps_);
  return this_run + others;
}

std::string Progress::line() const {
  constexpr double kMinute = 60;
  double left = seconds_left();
  std::string prefix = runs_ > 1 ? fmt::format("run {}/{}  ", run_ + 1, runs_) : "";
  if (done_steps_ == 0) {
    double seconds = std::chrono::duration<double>(Clock::now() - phase_start_).count();
    return seconds < 1 ? fmt::format("{}{} ...", prefix, phase_)
                       : fmt::format("{}{} ... {:.0f} s", prefix, phase_, seconds);
  }
  return fmt::format("{}step {}/{}  {}/step  {:.0f} tokens/s  loss {:.4f}  {} left", prefix,
                     done_steps_, steps_, base::format_seconds(recent_step_s_), tokens_per_s_,
                     loss_,
                     left < kMinute ? fmt::format("{:.0f} s", left) : base::format_seconds(left));
}

void Progress::show(const std::string& text) {
  last_shown_ = Clock::now();
  if (terminal_) {
    say(stderr, "\r{}\033[K", text.substr(0, width_ - 1));
    line_open_ = true;
  } else {
    say(stderr, "{}\n", text);
  }
}

}  // namespace ljtrain::ljperf
