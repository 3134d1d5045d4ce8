#include "config_view.h"

namespace ljtrain::ljperf {
namespace {

const base::Json kAbsent;

const base::Json& value_at(const std::optional<base::JsonDocument>& document,
                           const std::string& pointer) {
  base::Json::json_pointer at(pointer);
  return document.has_value() && document->root().contains(at) ? document->root()[at] : kAbsent;
}

}  // namespace

const base::Json& ConfigView::ds(const std::string& pointer) const {
  return value_at(machine_.deepspeed, pointer);
}

const base::Json& ConfigView::arg(const std::string& name) const {
  return value_at(machine_.training_arguments, "/" + name);
}

std::optional<long long> ConfigView::ds_integer(const std::string& pointer) const {
  const base::Json& value = ds(pointer);
  return value.is_number_integer() ? std::optional(value.get<long long>()) : std::nullopt;
}

std::optional<double> ConfigView::arg_number(const std::string& name) const {
  const base::Json& value = arg(name);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

int ConfigView::stage() const {
  std::optional<long long> stage = ds_integer("/zero_optimization/stage");
  return stage.has_value() && *stage >= 0 && *stage <= 3 ? static_cast<int>(*stage) : 0;
}

bool ConfigView::recomputes() const {
  return arg_on("gradient_checkpointing") || arg_on("activation_checkpointing");
}

}  // namespace ljtrain::ljperf
