// The Python module ljtrain._recompute: the memory model and the planner. Nothing of PyTorch but
// the pybind11 that it brings.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "base/units.h"
#include "calibration/calibration.h"
#include "memory_model/description.h"
#include "memory_model/prediction.h"
#include "memory_model/profile.h"
#include "planner/planner.h"

namespace py = pybind11;

namespace ljtrain {
namespace {

namespace rc = ljtrain::recompute;
using Names = std::set<std::string, std::less<>>;

// A host core's, by order of magnitude: only the relation of arithmetic to traffic matters here, as
// measured steps set the scale.
constexpr double kFlopsPerSecond = 100e9;
constexpr double kBytesPerSecond = 10e9;
// Of the rise above the state between steps, where nothing was measured: the model's worst error
// over the 63 configurations of docs/recompute.md.
constexpr double kUncalibrated = 0.05;

rc::Policy policy_of(const std::vector<std::string>& layers, const Names& kept) {
  rc::Policy policy{.layers = {}, .kept_operators = kept};
  for (const std::string& name : layers) {
    if (name == "none") {
      policy.layers.push_back(rc::LayerPolicy::kNone);
    } else if (name == "selected") {
      policy.layers.push_back(rc::LayerPolicy::kSelected);
    } else if (name == "full") {
      policy.layers.push_back(rc::LayerPolicy::kFull);
    } else {
      throw base::user_error("a layer's policy is none, selected or full, not {}", name);
    }
  }
  return policy;
}

py::dict components_of(const rc::ComponentBytes& bytes) {
  py::dict result;
  for (std::size_t i = 0; i < rc::kComponents; ++i) {
    result[py::str(std::string(rc::component_name(static_cast<rc::Component>(i))))] = bytes[i];
  }
  return result;
}

// One model under one training, for any policy.
class Model {
 public:
  explicit Model(const std::string& description) {
    base::JsonDocument document = base::JsonDocument::parse(description, "the description");
    const base::Json& json = document.root();
    if (!json.contains("shape") || !json.contains("setup")) {
      throw base::user_error("the description needs a shape and a setup");
    }
    shape_ = rc::read_shape(json["shape"]);
    setup_ = rc::read_setup(json["setup"]);
    profile_ = rc::find_profile(shape_.family);
    if (profile_ == nullptr) {
      throw base::user_error("there is no memory profile of model_type {}", shape_.family);
    }
    predictor_ = std::make_unique<rc::Predictor>(*profile_, shape_, setup_);
  }

  std::size_t layers() const { return shape_.layers.size(); }
  double parameters() const { return predictor_->parameters(); }

  double peak(const std::vector<std::string>& layers, const Names& kept) const {
    return predictor_->peak_bytes(policy_of(layers, kept));
  }

  // With the first 0, 1, ... all layers recomputed.
  std::vector<double> peaks() const {
    std::vector<double> result;
    for (std::size_t k = 0; k <= layers(); ++k) {
      result.push_back(predictor_->peak_bytes(rc::Policy::first_recomputed(layers(), k)));
    }
    return result;
  }

  py::dict predict(const std::vector<std::string>& layers, const Names& kept) const {
    rc::Prediction prediction = predictor_->predict(policy_of(layers, kept));
    py::dict result;
    result["peak_bytes"] = prediction.peak_bytes;
    result["static_bytes"] = prediction.static_bytes;
    result["phase"] = std::string(rc::phase_name(prediction.peak_phase));
    result["layer"] = prediction.peak_layer;
    result["components"] = components_of(prediction.peak_components);
    result["assumptions"] = prediction.assumptions;
    return result;
  }

  // A predicted peak as (expected, highest) by what was measured on this platform: so far hosts.
  py::tuple bound(double static_bytes, double peak_bytes) const {
    const rc::Calibration& calibration = rc::Calibration::in_force();
    if (setup_.platform != rc::Platform::kHost || calibration.points() == 0) {
      const double rise = peak_bytes - static_bytes;
      return py::make_tuple(peak_bytes, peak_bytes + kUncalibrated * rise);
    }
    const rc::RiseTerm& term = calibration.rise_term({.family = shape_.family,
                                                      .engine = rc::engine_name(setup_.engine),
                                                      .compiled = setup_.compiled,
                                                      .lora = shape_.lora});
    const rc::Bound bound = calibration.peak(term, static_bytes, peak_bytes);
    return py::make_tuple(bound.expected, bound.upper);
  }

  py::dict plan(double limit_bytes, bool selected) const {
    rc::PlanRequest request;
    request.limit_bytes = limit_bytes;
    request.selected_operators = selected && !setup_.compiled;
    request.micro_batches = static_cast<double>(setup_.gradient_accumulation);
    rc::Plan plan = rc::make_plan(*predictor_, shape_, seconds(), request);
    py::list layers;
    for (rc::LayerPolicy policy : plan.policy.layers) {
      layers.append(std::string(rc::layer_policy_name(policy)));
    }
    py::dict result;
    result["layers"] = layers;
    result["kept"] = std::vector<std::string>(plan.policy.kept_operators.begin(),
                                              plan.policy.kept_operators.end());
    result["fits"] = plan.fits;
    result["peak_bytes"] = plan.prediction.peak_bytes;
    result["recompute_seconds"] = plan.recompute_seconds;
    result["step_seconds"] = plan.step_seconds;
    return result;
  }

  // Seconds of a step, by the roofline of a host core, as (without recomputing, of one layer's
  // recomputing, one entry a layer): their relation is what counts.
  py::tuple seconds_of() const {
    rc::StepSeconds step = seconds();
    const auto micro_batches = static_cast<double>(setup_.gradient_accumulation);
    std::vector<double> layers = step.layer_forward;
    for (double& layer : layers) {
      layer *= micro_batches;
    }
    return py::make_tuple(step.without_recompute(micro_batches), layers);
  }

 private:
  rc::StepSeconds seconds() const {
    static const rc::TimeModel kTime(rc::DeviceRates{.name = "host core",
                                                     .flops_per_second = kFlopsPerSecond,
                                                     .bytes_per_second = kBytesPerSecond});
    return rc::step_seconds(*profile_, shape_, setup_, kTime);
  }

  rc::ModelShape shape_;
  rc::TrainingSetup setup_;
  const rc::Profile* profile_ = nullptr;  // the library's, never freed
  std::unique_ptr<rc::Predictor> predictor_;
};

}  // namespace
}  // namespace ljtrain

PYBIND11_MODULE(_recompute, m) {
  using namespace ljtrain;
  m.doc() = "Predicts the peak memory of a training step and plans what to recompute.";
  py::register_exception<base::UserError>(m, "BadDescription", PyExc_ValueError);

  py::class_<Model>(m, "Model", "One model under one training, for any policy.")
      .def(py::init<const std::string&>(), py::arg("description"),
           "JSON as memory_model/description.h has it. Raises BadDescription.")
      .def_property_readonly("layers", &Model::layers)
      .def_property_readonly("parameters", &Model::parameters)
      .def("peak", &Model::peak, py::arg("layers"), py::arg("kept") = Names{}, "Bytes.")
      .def("peaks", &Model::peaks, "Bytes, with the first 0, 1, ... all layers recomputed.")
      .def("predict", &Model::predict, py::arg("layers"), py::arg("kept") = Names{})
      .def("bound", &Model::bound, py::arg("static_bytes"), py::arg("peak_bytes"),
           "(expected, highest) bytes of a predicted peak, as calibrated.")
      .def("plan", &Model::plan, py::arg("limit_bytes"), py::arg("selected"))
      .def("seconds", &Model::seconds_of);
  m.def("families", &recompute::profile_families, "The model_types of shipped profiles.");
  m.def("parse_bytes", &base::parse_bytes, py::arg("text"), "20GiB, 512MB, 1000; BadDescription.");
  m.def("format_bytes", &base::format_bytes, py::arg("bytes"));
}
