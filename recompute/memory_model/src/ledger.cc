#include "ledger.h"

namespace ljtrain::recompute {

Ledger::Ledger(const ComponentBytes& initial, bool with_timeline)
    : now_(initial),
      total_(total_bytes(initial)),
      with_timeline_(with_timeline),
      highest_(total_),
      highest_components_(initial),
      peak_(total_),
      peak_components_(initial) {}

void Ledger::rose() {
  highest_ = total_;
  if (with_timeline_) {
    highest_components_ = now_;
  }
  if (total_ > peak_) {
    peak_ = total_;
    peak_components_ = now_;
    peak_phase_ = phase_;
    peak_layer_ = layer_;
  }
}

void Ledger::begin_pass(Phase phase, int layer) {
  phase_ = phase;
  layer_ = layer;
  if (with_timeline_) {
    highest_ = total_;
    highest_components_ = now_;
  }
}

void Ledger::end_pass() {
  if (with_timeline_) {
    timeline_.push_back(
        {.phase = phase_, .layer = layer_, .highest = true, .bytes = highest_components_});
    timeline_.push_back({.phase = phase_, .layer = layer_, .highest = false, .bytes = now_});
  }
}

}  // namespace ljtrain::recompute
