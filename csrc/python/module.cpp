#include "python/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "pycoll's C++ core. Its names are private: use those of the package pycoll.";
  module.attr("headers") = PYCOLL_HEADERS;  // a digest; see CMakeLists.txt
  pycoll::bind_errors(module);
  pycoll::bind_schedule(module);
  pycoll::bind_communicator(module);
  pycoll::bind_probe(module);
  pycoll::bind_network(module);
  pycoll::bind_reduce(module);
  pycoll::bind_topology(module);
  pycoll::bind_simulator(module);
  pycoll::bind_bound(module);
}
