// Each room's part of pycoll._core, one file a room.
#pragma once
#include <pybind11/pybind11.h>

#include <string_view>

#include "schedule/collective.h"
#include "topology/routes.h"

namespace pycoll {

void bind_errors(pybind11::module_& module);    // the exception classes; first, since the others raise them
void bind_schedule(pybind11::module_& module);  // schedules, their verification, the registry of algorithms
void bind_communicator(pybind11::module_& module);  // the engine
void bind_probe(pybind11::module_& module);         // distance between processors, measured
void bind_network(pybind11::module_& module);       // this host's network interfaces
void bind_reduce(pybind11::module_& module);        // the reduction kernels by themselves, for tests
void bind_topology(pybind11::module_& module);      // machines as graphs, their routes
void bind_simulator(pybind11::module_& module);     // schedules timed on topologies
void bind_bound(pybind11::module_& module);         // the least time on a topology, packings of trees

CollectiveKind parse_kind(std::string_view name);  // "allreduce", ...; InvalidArgument
Routing parse_routing(std::string_view name);      // "spread" or "hash"; InvalidArgument

}  // namespace pycoll
