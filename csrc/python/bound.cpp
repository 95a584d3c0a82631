#include "topology/bound.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <string_view>

#include "core/error.h"
#include "python/bindings.h"
#include "topology/tree_packing.h"

namespace py = pybind11;

namespace pycoll {

void bind_bound(py::module_& module) {
  py::class_<Bound>(module, "Bound")
      .def_readonly("seconds", &Bound::seconds)
      .def_readonly("bandwidth_seconds", &Bound::bandwidth_seconds)
      .def_readonly("latency_seconds", &Bound::latency_seconds)
      .def_readonly("parts", &Bound::parts)
      .def_readonly("binding", &Bound::binding);
  module.def(
      "bound",
      [](const Topology& topology, std::string_view collective, double size, int root) {
        return bound(topology, parse_kind(collective), size, root);
      },
      py::arg("topology"), py::arg("collective"), py::arg("size"), py::arg("root"),
      py::call_guard<py::gil_scoped_release>());

  py::class_<WeightedTree>(module, "WeightedTree")
      .def_readonly("root", &WeightedTree::root)
      .def_readonly("up", &WeightedTree::up)
      .def_readonly("down", &WeightedTree::down)
      .def_readonly("weight", &WeightedTree::weight);
  py::class_<TreePacking>(module, "TreePacking")
      .def_readonly("trees", &TreePacking::trees)
      .def_readonly("rate", &TreePacking::rate)
      .def_readonly("rate_limit", &TreePacking::rate_limit);
  module.def(
      "pack_trees",
      [](const Topology& topology, std::string_view collective, int root, bool free_routes, double tolerance,
         double enough, int max_trees) {
        const CollectiveKind kind = parse_kind(collective);
        return pack_trees(topology, {kind, root, free_routes, false, tolerance, enough, max_trees});
      },
      py::arg("topology"), py::arg("collective"), py::arg("root"), py::arg("free_routes"),
      py::arg("tolerance"), py::arg("enough"), py::arg("max_trees"),
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace pycoll
