// DeepSpeed ZeRO stage 3 (0.19.8: runtime/zero/stage3.py, partition_parameters.py,
// partitioned_param_coordinator.py): every tensor is split over the ranks. Modules gather their
// parameters before they compute, the trace of the steps before lets later ones be prefetched, and
// parameters are released unless they are small (persistent) or used again soon.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine.h"

namespace ljtrain::recompute {
namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

class Zero3 final : public EngineMemory {
 public:
  explicit Zero3(const PreparedModel& model)
      : EngineMemory(model), state_(model.parameters().all.size()) {
    for (int i = 0; i < std::ssize(parameters().all); ++i) {
      state(i).persists = parameter(i).elements <= knobs().persistence_threshold;
      persistent_bytes_ += gathers() && state(i).persists ? whole_bytes(i) : 0;
    }
  }

  ComponentBytes static_state() const override {
    ComponentBytes bytes{};
    auto at = [&bytes](Component component) -> double& {
      return bytes[static_cast<std::size_t>(component)];
    };
    double trainable = shares(true);
    bool device = model().setup().platform == Platform::kCuda;
    at(Component::kWeights) =
        (knobs().offload_param && device ? 0 : kBf16Bytes * shares(false)) + persistent_bytes_;
    at(Component::kMasterWeights) = optimizer_state(kFp32Bytes * trainable);
    at(Component::kOptimizer) =
        optimizer_state(model().setup().optimizer_bytes_per_parameter * trainable);
    // The flat buffer of reduced gradients is never freed.
    at(Component::kGradients) = optimizer_state(kBf16Bytes * trainable);
    if (knobs().contiguous_gradients) {
      at(Component::kCommunication) = kBf16Bytes * knobs().reduce_bucket_size;
    }
    return bytes;
  }

  void begin_micro_step(Ledger& ledger, const std::vector<int>& schedule, bool first,
                        bool last) override {
    EngineMemory::begin_micro_step(ledger, schedule, first, last);
    schedule_ = &schedule;
    step_ = 0;
    ahead_ = {};
    live_elements_ = 0;
    // traversed_[i]: elements of the modules before the i-th use; next_use_[i]: when its module is
    // used again.
    traversed_.assign(schedule.size() + 1, 0);
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      traversed_[i + 1] = traversed_[i] + module(schedule[i]).elements;
    }
    next_use_.assign(schedule.size(), kNever);
    std::vector<std::size_t> last_seen(parameters().modules.size(), kNever);
    for (std::size_t i = schedule.size(); i-- > 0;) {
      auto number = static_cast<std::size_t>(schedule[i]);
      next_use_[i] = last_seen[number];
      last_seen[number] = i;
    }
    for (ParameterState& entry : state_) {
      entry.fetched_for = -1;
    }
  }

  void use(Ledger& ledger, int number) override {
    const Module& current = module(number);
    if (gathers()) {
      fetch(ledger, current);
      prefetch(ledger, current);
    }
    ++step_;
  }

  void done(Ledger& ledger, int number) override {
    if (!gathers()) {
      return;
    }
    // The module's last use so far is the one that has ended.
    std::size_t used = step_ - 1;
    while (used > 0 && (*schedule_)[used] != number) {
      --used;
    }
    std::size_t next = next_use_[used];
    for (int i : module(number).parameters) {
      ParameterState& entry = state(i);
      bool again_soon =
          next != kNever && traversed_[next] - traversed_[step_] < knobs().max_reuse_distance;
      bool skipped_by_prefetch = std::cmp_greater(entry.fetched_for, step_);
      if (entry.gathered && !entry.persists && !again_soon && !skipped_by_prefetch) {
        release(ledger, i);
      }
    }
  }

  void gradient(Ledger& ledger, int number, double bytes) override {
    int segment = parameter(number).segment;
    bool layer = segment > 0 && segment + 1 < static_cast<int>(model().segments());
    if (knobs().leaf_layers && layer) {
      held_.push_back({number, bytes});  // reduced when the layer's backward has ended
    } else {
      put_into_bucket(ledger, number, bytes);
    }
  }

  void enter(Ledger& /*ledger*/, std::size_t /*segment*/, Phase phase) override {
    forward_ = phase == Phase::kForward;
  }

  void leave(Ledger& ledger, std::size_t segment, Phase phase) override {
    if (phase == Phase::kBackward) {
      for (int number : parameters().of_segment[segment]) {
        ledger.free(Component::kWeights, state(number).saved);
        state(number).saved = 0;
      }
      for (const Gradient& entry : held_) {
        put_into_bucket(ledger, entry.parameter, entry.bytes);
      }
      held_.clear();
    }
  }

  void end_backward(Ledger& ledger) override { reduce_bucket(ledger); }

  void optimizer_step(Ledger& ledger) override {
    for (int i = 0; i < std::ssize(state_); ++i) {
      if (state(i).gathered) {
        release(ledger, i);
      }
    }
    ledger.settle(Component::kCommunication,
                  knobs().contiguous_gradients ? kBf16Bytes * knobs().reduce_bucket_size : 0);
    double weights = ledger.at(Component::kWeights);
    ledger.free(Component::kWeights, persistent_bytes_);
    if (!knobs().offload_optimizer) {
      ledger.touch(Component::kOptimizer, kFp32Bytes * std::ceil(largest_trainable() / ranks()));
      step_groups(ledger);
    }
    ledger.settle(Component::kWeights, weights);
  }

 private:
  struct ParameterState {
    bool persists = false;
    bool gathered = false;
    bool in_flight = false;
    bool padded = false;            // lies in a buffer of padded size
    double saved = 0;               // bytes that autograd still holds after the release
    int group = -1;                 // of the prefetch it came with, while its flat buffer lives
    std::int64_t fetched_for = -1;  // the latest use that a fetch was for
  };
  struct Flat {
    double bytes = 0;
    int waiting = 0;  // parameters that have not been waited for
    bool copied = false;
    std::vector<int> parameters;
  };
  struct Gradient {
    int parameter;
    double bytes;
  };
  // The prefetcher's place: the first use, and parameter of it, that it has not looked at.
  struct Ahead {
    std::size_t use = 0;
    std::size_t parameter = 0;
  };

  bool gathers() const { return model().setup().ranks > 1; }
  ParameterState& state(int number) { return state_[static_cast<std::size_t>(number)]; }
  const Module& module(int number) const {
    return parameters().modules[static_cast<std::size_t>(number)];
  }
  // Gathered from equal shares, so padded to a multiple of the ranks.
  double padded_bytes(int number) const { return kBf16Bytes * share(number) * ranks(); }
  double whole_bytes(int number) const { return kBf16Bytes * parameter(number).elements; }

  bool missing(int number) {
    const ParameterState& entry = state(number);
    return !entry.persists && !entry.gathered && !entry.in_flight;
  }

  void fetch(Ledger& ledger, const Module& current) {
    std::vector<int> wanted;
    for (int i : current.parameters) {
      if (missing(i) && std::ranges::find(wanted, i) == wanted.end()) {
        wanted.push_back(i);
      }
    }
    gather(ledger, wanted);
    for (int i : current.parameters) {
      wait_for(ledger, i);
    }
  }

  // One parameter lands where it is used; several land in a flat buffer and are copied out when the
  // first of them is waited for. The buffer lives until the last has been.
  void gather(Ledger& ledger, const std::vector<int>& wanted) {
    if (wanted.empty()) {
      return;
    }
    for (int i : wanted) {
      live_elements_ += parameter(i).elements;
      state(i).in_flight = true;
    }
    for (int i : wanted) {
      state(i).padded = wanted.size() == 1;
    }
    if (wanted.size() == 1) {
      ledger.allocate(Component::kWeights, padded_bytes(wanted.front()));
      communicate(ledger, padded_bytes(wanted.front()));
      return;
    }
    Flat flat{.waiting = static_cast<int>(wanted.size()), .parameters = wanted};
    for (int i : wanted) {
      flat.bytes += padded_bytes(i);
      state(i).group = static_cast<int>(flats_.size());
    }
    ledger.allocate(Component::kCommunication, flat.bytes);
    communicate(ledger, flat.bytes);
    flats_.push_back(std::move(flat));
  }

  void wait_for(Ledger& ledger, int number) {
    ParameterState& entry = state(number);
    if (!entry.in_flight) {
      return;
    }
    entry.in_flight = false;
    entry.gathered = true;
    if (entry.group < 0) {
      return;
    }
    Flat& flat = flats_[static_cast<std::size_t>(entry.group)];
    if (!flat.copied) {
      for (int i : flat.parameters) {
        ledger.allocate(Component::kWeights, whole_bytes(i));
      }
      flat.copied = true;
    }
    if (--flat.waiting == 0) {
      ledger.free(Component::kCommunication, flat.bytes);
    }
    entry.group = -1;
  }

  // fetch_sub_module: takes the module's own parameters off the queue, then gathers what comes next
  // until the bucket or the limit of live parameters is full.
  void prefetch(Ledger& ledger, const Module& current) {
    if (knobs().prefetch_bucket_size <= 0) {
      return;
    }
    auto now = static_cast<std::int64_t>(step_);
    std::size_t unseen = 0;
    for (int i : current.parameters) {
      unseen += state(i).fetched_for < now ? 1 : 0;
    }
    for (; unseen > 0; --unseen) {
      next_ahead();
    }
    double room =
        std::min(knobs().max_live_parameters - live_elements_, knobs().prefetch_bucket_size);
    std::vector<int> wanted;
    double elements = 0;
    while (ahead_.use < schedule_->size() && elements < room) {
      int candidate = next_ahead();
      if (candidate >= 0 && missing(candidate) &&
          std::ranges::find(wanted, candidate) == wanted.end()) {
        wanted.push_back(candidate);
        elements += parameter(candidate).elements;
      }
    }
    gather(ledger, wanted);
  }

  // Takes one parameter off the queue; -1 when it is empty.
  int next_ahead() {
    while (ahead_.use < schedule_->size() &&
           ahead_.parameter >= module((*schedule_)[ahead_.use]).parameters.size()) {
      ++ahead_.use;
      ahead_.parameter = 0;
    }
    if (ahead_.use >= schedule_->size()) {
      return -1;
    }
    int number = module((*schedule_)[ahead_.use]).parameters[ahead_.parameter++];
    state(number).fetched_for =
        std::max(state(number).fetched_for, static_cast<std::int64_t>(ahead_.use));
    return number;
  }

  void release(Ledger& ledger, int number) {
    ParameterState& entry = state(number);
    entry.gathered = false;
    live_elements_ -= parameter(number).elements;
    double bytes = entry.padded ? padded_bytes(number) : whole_bytes(number);
    // DeepSpeed frees a parameter by giving it other storage. A view that autograd saved keeps the
    // old one until the layer's backward.
    const SizedParameter& released = parameter(number);
    if (forward_ && released.saved_as_view && !is_recomputed(released.segment)) {
      entry.saved += bytes;
    } else {
      ledger.free(Component::kWeights, bytes);
    }
  }

  void put_into_bucket(Ledger& ledger, int number, double bytes) {
    double elements = parameter(number).elements;
    if (in_bucket_ + elements > knobs().reduce_bucket_size && in_bucket_ > 0) {
      reduce_bucket(ledger);
    }
    bool copied =
        knobs().contiguous_gradients && in_bucket_ + elements <= knobs().reduce_bucket_size;
    if (copied) {
      ledger.free(Component::kGradients, bytes);
    }
    bucket_.push_back({number, copied ? 0 : bytes});
    in_bucket_ += elements;
  }

  // reduce_scatter_coalesced: the gradients are copied once more, interleaved by rank, unless there
  // is one that divides evenly.
  void reduce_bucket(Ledger& ledger) {
    if (bucket_.empty()) {
      return;
    }
    double padded = 0;
    for (const Gradient& entry : bucket_) {
      padded += padded_bytes(entry.parameter);
    }
    int single = bucket_.front().parameter;
    bool in_place = bucket_.size() == 1 && padded == whole_bytes(single);
    double copy = in_place ? 0 : padded;
    ledger.allocate(Component::kCommunication, copy);
    communicate(ledger, padded);
    ledger.free(Component::kCommunication, copy);
    for (const Gradient& entry : bucket_) {
      ledger.free(Component::kGradients, entry.bytes);
    }
    bucket_.clear();
    in_bucket_ = 0;
  }

  // One group of parameters at a time: gradients flattened, then cast to fp32.
  void step_groups(Ledger& ledger) {
    for (bool decays : {true, false}) {
      double elements = 0;
      for (int i = 0; i < std::ssize(state_); ++i) {
        if (parameter(i).trainable && parameter(i).decays == decays) {
          elements += share(i);
        }
        bool last = i + 1 == std::ssize(state_);
        if (elements > 0 && (last || elements >= knobs().sub_group_size)) {
          ledger.allocate(Component::kOptimizer, kBf16Bytes * elements);
          ledger.touch(Component::kOptimizer, kFp32Bytes * elements);
          ledger.free(Component::kOptimizer, kBf16Bytes * elements);
          elements = 0;
        }
      }
    }
  }

  std::vector<ParameterState> state_;
  double persistent_bytes_ = 0;
  bool forward_ = true;
  const std::vector<int>* schedule_ = nullptr;
  std::size_t step_ = 0;
  Ahead ahead_;
  std::vector<double> traversed_;
  std::vector<std::size_t> next_use_;
  double live_elements_ = 0;
  std::vector<Flat> flats_;
  std::vector<Gradient> bucket_;
  double in_bucket_ = 0;
  std::vector<Gradient> held_;
};

}  // namespace

std::unique_ptr<EngineMemory> make_zero3(const PreparedModel& model) {
  return std::make_unique<Zero3>(model);
}

}  // namespace ljtrain::recompute
