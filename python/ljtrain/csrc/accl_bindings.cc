#include "accl_bindings.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "accl_backend.h"
#include "accl_rendezvous.h"

namespace py = pybind11;

namespace ljtrain {
namespace {

py::list reports() {
  py::list result;
  for (const AcclReport& report : accl_reports()) {
    py::dict entry;
    entry["name"] = report.name;
    entry["backend"] = "accl";
    entry["stands_for"] = report.stands_for_gloo ? py::cast("gloo") : py::object(py::none());
    entry["rank"] = report.rank;
    entry["ranks"] = report.ranks;
    entry["open"] = report.open;
    entry["operations"] = report.calls;
    entry["bytes"] = report.bytes;
    result.append(entry);
  }
  return result;
}

}  // namespace

void bind_accl(py::module_& m) {
  py::module_::import("torch._C._distributed_c10d");  // binds the base class
  py::register_exception<ElsewhereError>(m, "ElsewhereError", PyExc_RuntimeError);
  // Its methods are those of torch's class Backend. These that class does not bind.
  py::class_<AcclBackend, c10d::Backend, c10::intrusive_ptr<AcclBackend>>(m, "ProcessGroupAccl")
      .def_property_readonly("options", &AcclBackend::options)
      .def(
          "_set_default_timeout",
          [](AcclBackend& self, std::chrono::milliseconds timeout) { self.setTimeout(timeout); },
          py::arg("timeout"), py::call_guard<py::gil_scoped_release>())
      .def("get_error", &AcclBackend::getError, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("stands_for_gloo", &AcclBackend::stands_for_gloo);
  m.def("accl_create", &AcclBackend::create, py::arg("store"), py::arg("rank"), py::arg("size"),
        py::arg("timeout"), py::arg("name") = "", py::arg("stands_for_gloo") = false,
        py::call_guard<py::gil_scoped_release>(), "A ProcessGroupAccl, once all ranks have come.");
  m.def("accl_reports", &reports, "What each group of this process has served.");
  m.def("accl_at_exit", &accl_at_exit, py::call_guard<py::gil_scoped_release>());
}

}  // namespace ljtrain
