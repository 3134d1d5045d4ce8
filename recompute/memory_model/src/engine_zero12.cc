// DeepSpeed ZeRO stages 1 and 2 (0.19.8: runtime/zero/stage_1_and_2.py): whole bf16 weights; fp32
// masters, moments and, from the reduction on, gradients of the rank's part of each parameter
// group. Gradients travel through a flat bucket; stage 1 reduces them when backward has ended,
// stage 2 as they come.
#include <algorithm>
#include <array>
#include <cmath>

#include "engine.h"

namespace ljtrain::recompute {
namespace {

class Zero12 final : public EngineMemory {
 public:
  explicit Zero12(const PreparedModel& model)
      : EngineMemory(model),
        partitions_gradients_(model.setup().engine == Engine::kZero2),
        overlaps_(model.setup().knobs.overlap_comm.value_or(false)) {
    lay_out();
  }

  ComponentBytes static_state() const override {
    ComponentBytes bytes{};
    auto at = [&bytes](Component component) -> double& {
      return bytes[static_cast<std::size_t>(component)];
    };
    double part = groups_[0].partition + groups_[1].partition;
    at(Component::kWeights) = kBf16Bytes * parameters().elements;
    at(Component::kMasterWeights) = optimizer_state(kFp32Bytes * part);
    at(Component::kOptimizer) =
        optimizer_state(model().setup().optimizer_bytes_per_parameter * part);
    return bytes;
  }

  void begin_micro_step(Ledger& ledger, const std::vector<int>& schedule, bool first,
                        bool last) override {
    EngineMemory::begin_micro_step(ledger, schedule, first, last);
    // Stage 2: what earlier micro-steps left reduced in the rank's part.
    accumulated_ = held_;
    held_ = 0;
  }

  void gradient(Ledger& ledger, int number, double bytes) override {
    open_bucket(ledger);
    if (partitions_gradients_) {
      put_into_bucket(ledger, number, bytes);
    } else if (first_micro_step()) {
      waiting_bytes_[static_cast<std::size_t>(number)] = bytes;
    } else {
      ledger.free(Component::kGradients, bytes);  // accumulated into the one that is there
    }
  }

  void end_backward(Ledger& ledger) override {
    if (!partitions_gradients_ && last_micro_step()) {
      for (bool decays : {true, false}) {
        for (int i = 0; i < std::ssize(parameters().all); ++i) {
          double bytes = waiting_bytes_[static_cast<std::size_t>(i)];
          if (bytes > 0 && parameter(i).decays == decays) {
            put_into_bucket(ledger, i, bytes);
          }
        }
      }
    }
    if (partitions_gradients_ || last_micro_step()) {
      reduce_bucket(ledger);
      if (accumulated_ > 0) {  // added to what was there, then freed
        ledger.free(Component::kGradients, held_);
        held_ = accumulated_;
      }
    }
    ledger.free(Component::kGradients, left_over_);
    left_over_ = 0;
    ledger.settle(Component::kCommunication, 0);
    bucket_open_ = false;
  }

  void optimizer_step(Ledger& ledger) override {
    ledger.touch(Component::kOptimizer, kFp32Bytes * largest_trainable());
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].elements == 0) {
        continue;
      }
      double part = groups_[i].partition;
      ledger.allocate(Component::kGradients, kBf16Bytes * part);  // flattened
      ledger.allocate(Component::kGradients, kFp32Bytes * part);
      ledger.free(Component::kGradients, kBf16Bytes * part);
      // The groups' gradients share one buffer, which goes with the last of them.
      if (i + 1 == groups_.size() || groups_[i + 1].elements == 0) {
        ledger.free(Component::kGradients, held_);
        held_ = 0;
      }
      ledger.free(Component::kGradients, kFp32Bytes * part);
    }
    double bucket = std::min(parameters().trainable, knobs().allgather_bucket_size);
    if (ranks() > 1) {
      communicate(ledger, kBf16Bytes * bucket);
    }
    ledger.settle(Component::kGradients, 0);
    std::ranges::fill(waiting_bytes_, 0);
  }

 private:
  struct Group {
    double elements = 0;
    double partition = 0;  // of one rank
  };
  // Where a parameter lies in its group's flat buffer, by rank.
  struct Place {
    std::int64_t first_rank = 0;
    std::int64_t last_rank = 0;
  };

  void lay_out() {
    places_.resize(parameters().all.size());
    waiting_bytes_.assign(parameters().all.size(), 0);
    for (bool decays : {true, false}) {
      Group& group = groups_[decays ? 0 : 1];
      for (const SizedParameter& candidate : parameters().all) {
        group.elements +=
            candidate.trainable && candidate.decays == decays ? candidate.elements : 0;
      }
      double alignment = 2 * ranks();
      group.partition = std::ceil(group.elements / alignment) * alignment / ranks();
      double offset = 0;
      for (std::size_t i = 0; i < places_.size(); ++i) {
        const SizedParameter& candidate = parameters().all[i];
        if (!candidate.trainable || candidate.decays != decays) {
          continue;
        }
        places_[i].first_rank = static_cast<std::int64_t>(offset / group.partition);
        offset += candidate.elements;
        places_[i].last_rank = static_cast<std::int64_t>((offset - 1) / group.partition);
        // Whole parameters are kept where a part of them is the rank's own.
        own_elements_ += places_[i].first_rank == 0 ? candidate.elements : 0;
      }
    }
  }

  void open_bucket(Ledger& ledger) {
    if (!bucket_open_ && knobs().contiguous_gradients) {
      ledger.allocate(Component::kCommunication,
                      (overlaps_ ? 2 : 1) * kBf16Bytes * knobs().reduce_bucket_size);
    }
    bucket_open_ = true;
  }

  void put_into_bucket(Ledger& ledger, int number, double bytes) {
    double elements = parameter(number).elements;
    if (in_bucket_ + elements > knobs().reduce_bucket_size) {
      reduce_bucket(ledger);
    }
    bool copied = knobs().contiguous_gradients && elements <= knobs().reduce_bucket_size;
    if (copied) {
      ledger.free(Component::kGradients, bytes);
    }
    in_bucket_ += elements;
    bucket_.push_back({.parameter = number, .uncopied = copied ? 0 : bytes});
  }

  void reduce_bucket(Ledger& ledger) {
    if (bucket_.empty()) {
      return;
    }
    // One slice a destination; several are flattened into a copy.
    const Place& head = places_[static_cast<std::size_t>(bucket_.front().parameter)];
    bool one_slice = std::ranges::all_of(bucket_, [&](const InBucket& entry) {
      const Place& place = places_[static_cast<std::size_t>(entry.parameter)];
      return place.first_rank == head.first_rank && place.last_rank == head.first_rank;
    });
    if (!one_slice || (!knobs().contiguous_gradients && bucket_.size() > 1)) {
      ledger.touch(Component::kCommunication, kBf16Bytes * in_bucket_);
    }
    for (const InBucket& entry : bucket_) {
      bool own = places_[static_cast<std::size_t>(entry.parameter)].first_rank == 0;
      if (own && held_ == 0) {
        held_ = kBf16Bytes * own_elements_;
        ledger.allocate(Component::kGradients, held_);
      }
      // Stage 1 leaves what is not the rank's own until all has been reduced.
      if (own || partitions_gradients_) {
        ledger.free(Component::kGradients, entry.uncopied);
      } else {
        left_over_ += entry.uncopied;
      }
    }
    bucket_.clear();
    in_bucket_ = 0;
  }

  struct InBucket {
    int parameter = 0;
    double uncopied = 0;  // bytes of a gradient that is too large for the bucket
  };

  bool partitions_gradients_;
  bool overlaps_;
  std::array<Group, 2> groups_;  // with weight decay and without
  std::vector<Place> places_;
  std::vector<double> waiting_bytes_;
  double own_elements_ = 0;
  std::vector<InBucket> bucket_;
  double in_bucket_ = 0;
  bool bucket_open_ = false;
  double left_over_ = 0;
  double held_ = 0;         // bytes of reduced gradients in the rank's part
  double accumulated_ = 0;  // of earlier micro-steps
};

}  // namespace

std::unique_ptr<EngineMemory> make_zero12(const PreparedModel& model) {
  return std::make_unique<Zero12>(model);
}

}  // namespace ljtrain::recompute
