// What a person sees while ranks train: one line that renews itself on a terminal, a line now and
// then elsewhere.
#pragma once

#include <chrono>
#include <string>

namespace ljtrain::ljperf {

class Progress {
 public:
  // Writes to standard error. `steps` is what one run will take, `runs` how many runs there are.
  Progress(int runs, int steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start_run(int run);              // from 0
  void phase(const std::string& name);  // what happens before the first step
  void step(int step, double seconds, double loss, double tokens_per_s);  // from 0
  void tick();                                                            // renews the line
  void finish();                                                          // takes the line away

 private:
  void show(const std::string& line);
  std::string line() const;
  double seconds_left() const;

  using Clock = std::chrono::steady_clock;
  int runs_;
  int steps_;
  bool terminal_;
  std::size_t width_;
  int run_ = 0;
  std::string phase_;
  Clock::time_point phase_start_;
  Clock::time_point run_start_;
  Clock::time_point last_shown_;
  double start_up_s_ = 0;  // of the first run: what the next runs will need again
  int done_steps_ = 0;
  double recent_step_s_ = 0;
  double loss_ = 0;
  double tokens_per_s_ = 0;
  bool line_open_ = false;
};

}  // namespace ljtrain::ljperf
