// What a training engine allocates and frees besides autograd: its state between steps, and what
// moves in a step. One file an engine; each says which source it was read from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ledger.h"
#include "prepared.h"

namespace ljtrain::recompute {

// Bytes of an element.
inline constexpr double kBf16Bytes = 2;
inline constexpr double kFp32Bytes = 4;

// Called in the order of a step: for each micro-step begin_micro_step, then the passes (enter, use
// and done of modules, gradient, leave), then end_backward; optimizer_step last.
class EngineMemory {
 public:
  explicit EngineMemory(const PreparedModel& model) : model_(model) {}
  virtual ~EngineMemory() = default;
  EngineMemory(const EngineMemory&) = delete;
  EngineMemory& operator=(const EngineMemory&) = delete;

  // What is there between steps, after the first one, with gradients freed.
  virtual ComponentBytes static_state() const = 0;

  // Which segments are recomputed in backward, so that autograd saves nothing of their forward.
  // Called before the first micro-step.
  void set_recomputed(const std::vector<bool>& recomputed) { recomputed_ = recomputed; }
  // `schedule`: modules in the order in which the micro-step uses them.
  virtual void begin_micro_step(Ledger& /*ledger*/, const std::vector<int>& /*schedule*/,
                                bool first, bool last) {
    first_ = first;
    last_ = last;
  }
  virtual void enter(Ledger& /*ledger*/, std::size_t /*segment*/, Phase /*phase*/) {}
  virtual void leave(Ledger& /*ledger*/, std::size_t /*segment*/, Phase /*phase*/) {}
  virtual void use(Ledger& /*ledger*/, int /*module*/) {}
  virtual void done(Ledger& /*ledger*/, int /*module*/) {}
  // `bytes` have been allocated as kGradients for the gradient of `parameter`.
  virtual void gradient(Ledger& ledger, int parameter, double bytes) = 0;
  virtual void end_backward(Ledger& /*ledger*/) {}
  // Ends with the gradients freed.
  virtual void optimizer_step(Ledger& ledger) = 0;

 protected:
  const PreparedModel& model() const { return model_; }
  const Parameters& parameters() const { return model_.parameters(); }
  const EngineKnobs& knobs() const { return model_.setup().knobs; }
  double ranks() const { return static_cast<double>(model_.setup().ranks); }
  const SizedParameter& parameter(int number) const {
    return parameters().all[static_cast<std::size_t>(number)];
  }
  // A rank's share of one parameter, in elements.
  double share(int number) const;
  // The sum of share() over the parameters, trainable ones only or all.
  double shares(bool trainable_only) const;
  double largest_trainable() const;
  // Gloo works on a copy of what it gathers or scatters; others work in place.
  void communicate(Ledger& ledger, double bytes) const;
  bool is_recomputed(int segment) const { return recomputed_[static_cast<std::size_t>(segment)]; }
  bool first_micro_step() const { return first_; }
  bool last_micro_step() const { return last_; }
  // Where the optimizer's state lives: not counted when it is the host's and the device is not.
  double optimizer_state(double bytes) const;

 private:
  const PreparedModel& model_;
  std::vector<bool> recomputed_;
  bool first_ = true;
  bool last_ = true;
};

std::unique_ptr<EngineMemory> make_engine(const PreparedModel& model);

std::unique_ptr<EngineMemory> make_replicated(const PreparedModel& model);  // one rank, DDP
std::unique_ptr<EngineMemory> make_fsdp2(const PreparedModel& model);
std::unique_ptr<EngineMemory> make_zero0(const PreparedModel& model);
std::unique_ptr<EngineMemory> make_zero12(const PreparedModel& model);
std::unique_ptr<EngineMemory> make_zero3(const PreparedModel& model);

}  // namespace ljtrain::recompute
