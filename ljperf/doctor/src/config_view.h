// A training's configuration as the rules see it: DeepSpeed's JSON and the TrainingArguments.
#pragma once

#include <optional>
#include <string>

#include "doctor/machine.h"

namespace ljtrain::ljperf {

class ConfigView {
 public:
  explicit ConfigView(const Machine& machine) : machine_(machine) {}

  const Machine& machine() const { return machine_; }
  bool has_deepspeed() const { return machine_.deepspeed.has_value(); }
  bool has_arguments() const { return machine_.training_arguments.has_value(); }

  // The value of a key ("/bf16/enabled"; "learning_rate"); null where absent.
  const base::Json& ds(const std::string& pointer) const;
  const base::Json& arg(const std::string& name) const;

  bool ds_on(const std::string& pointer) const { return ds(pointer) == true; }
  bool arg_on(const std::string& name) const { return arg(name) == true; }
  bool ds_has(const std::string& pointer) const { return !ds(pointer).is_null(); }
  bool arg_has(const std::string& name) const { return !arg(name).is_null(); }
  std::optional<long long> ds_integer(const std::string& pointer) const;
  std::optional<double> arg_number(const std::string& name) const;

  // ZeRO's stage; 0 where it is absent or no number.
  int stage() const;
  // Gradient checkpointing is on, by either of its names.
  bool recomputes() const;

 private:
  const Machine& machine_;
};

}  // namespace ljtrain::ljperf
