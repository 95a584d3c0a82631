#include "core/probe.h"

#include "python/bindings.h"

namespace py = pybind11;

namespace pycoll {

void bind_probe(py::module_& module) {
  module.def("core_to_core_ns", &core_to_core_ns, py::arg("cpu_a") = -1, py::arg("cpu_b") = -1,
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace pycoll
