#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "python/bindings.h"
#include "simulator/plan.h"
#include "simulator/simulate.h"

namespace py = pybind11;

namespace pycoll {

namespace {

// An array that owns what the vector held.
template <typename T>
py::array_t<T> array_of(std::vector<T>&& values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owned->data();
  const auto count = static_cast<py::ssize_t>(owned->size());
  py::capsule owner(owned.get(), [](void* vector) { delete static_cast<std::vector<T>*>(vector); });
  owned.release();
  return py::array_t<T>(count, data, owner);
}

py::array_t<uint8_t> array_of(const std::vector<Reason>& reasons) {
  py::array_t<uint8_t> array(static_cast<py::ssize_t>(reasons.size()));
  uint8_t* out = array.mutable_data();
  for (Reason reason : reasons) *out++ = static_cast<uint8_t>(reason);
  return array;
}

py::list rows_of(const std::vector<CriticalStep>& path) {
  py::list rows;
  for (const CriticalStep& step : path)
    rows.append(py::make_tuple(step.transfer, static_cast<int>(step.reason), step.waited_for, step.link,
                               step.start, step.overhead, step.transmission, step.latency, step.addition,
                               step.end));
  return rows;
}

py::dict run(const SimulationPlan& plan, double size, const std::vector<double>& start) {
  SimulationResult result;
  {
    const py::gil_scoped_release unlocked;
    const auto poll = [] {
      const py::gil_scoped_acquire locked;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    };
    result = simulate(plan, size, start, poll);
  }
  py::dict out;
  out["time"] = result.time;
  out["rank_times"] = array_of(std::move(result.rank_times));
  out["start"] = array_of(std::move(result.start));
  out["end"] = array_of(std::move(result.sent));
  out["done"] = array_of(std::move(result.done));
  out["link"] = array_of(std::move(result.link));
  out["reason"] = array_of(result.reason);
  out["waited_for"] = array_of(std::move(result.waited_for));
  out["link_bytes"] = array_of(std::move(result.link_bytes));
  out["critical_path"] = rows_of(result.critical_path);
  return out;
}

}  // namespace

void bind_simulator(py::module_& module) {
  py::class_<SimulationPlan, std::shared_ptr<SimulationPlan>>(module, "SimulationPlan")
      .def(py::init([](std::shared_ptr<Schedule> schedule, std::shared_ptr<Topology> topology,
                       std::string_view routing, uint64_t seed) {
             const Routing parsed = parse_routing(routing);
             const py::gil_scoped_release unlocked;
             return std::make_shared<SimulationPlan>(
                 make_simulation_plan(std::move(schedule), std::move(topology), parsed, seed));
           }),
           py::arg("schedule"), py::arg("topology"), py::arg("routing"), py::arg("seed"))
      .def("run", &run, py::arg("size"), py::arg("start"));
}

}  // namespace pycoll
