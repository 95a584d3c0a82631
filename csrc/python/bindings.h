// Each room's part of pycoll._core, one file a room.
#pragma once
#include <pybind11/pybind11.h>

namespace pycoll {

void bind_errors(pybind11::module_& module);    // the exception classes; first, since the others raise them
void bind_schedule(pybind11::module_& module);  // schedules, their verification, the registry of algorithms
void bind_communicator(pybind11::module_& module);  // the engine
void bind_probe(pybind11::module_& module);         // distance between processors, measured
void bind_reduce(pybind11::module_& module);        // the reduction kernels by themselves, for tests

}  // namespace pycoll
