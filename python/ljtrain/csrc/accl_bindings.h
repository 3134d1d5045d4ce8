// What Python sees of the backend: see ljtrain/accl.py.
#pragma once

#include <pybind11/pybind11.h>

namespace ljtrain {

void bind_accl(pybind11::module_& m);

}  // namespace ljtrain
