// What is allocated at the moment of a simulated step, its peak, and the timeline.
#pragma once

#include <vector>

#include "memory_model/prediction.h"

namespace ljtrain::recompute {

class Ledger {
 public:
  // Starts from what is there between steps. Without `with_timeline` only the peak is kept.
  Ledger(const ComponentBytes& initial, bool with_timeline);

  void allocate(Component component, double bytes) { add(component, bytes); }
  void free(Component component, double bytes) { add(component, -bytes); }
  // Sets a component to `bytes`, whatever it was.
  void settle(Component component, double bytes) { add(component, bytes - at(component)); }
  // An allocation that is freed before anything else happens.
  void touch(Component component, double bytes) {
    allocate(component, bytes);
    free(component, bytes);
  }

  double at(Component component) const { return now_[static_cast<std::size_t>(component)]; }
  const ComponentBytes& now() const { return now_; }

  // What follows belongs to this pass; two points of the timeline close the one before.
  void begin_pass(Phase phase, int layer);
  void end_pass();

  double peak_bytes() const { return peak_; }
  const ComponentBytes& peak_components() const { return peak_components_; }
  Phase peak_phase() const { return peak_phase_; }
  int peak_layer() const { return peak_layer_; }
  std::vector<TimelinePoint> take_timeline() { return std::move(timeline_); }

 private:
  void add(Component component, double bytes) {
    now_[static_cast<std::size_t>(component)] += bytes;
    total_ += bytes;
    if (total_ > highest_) {
      rose();
    }
  }
  void rose();

  ComponentBytes now_;
  double total_;
  bool with_timeline_;
  Phase phase_ = Phase::kForward;
  int layer_ = -1;
  double highest_;  // of the pass; without a timeline, of the step
  ComponentBytes highest_components_;
  double peak_;
  ComponentBytes peak_components_;
  Phase peak_phase_ = Phase::kForward;
  int peak_layer_ = -1;
  std::vector<TimelinePoint> timeline_;
};

}  // namespace ljtrain::recompute
