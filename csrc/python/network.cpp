#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "python/bindings.h"
#include "transport/tcp/interfaces.h"
#include "transport/ucx/information.h"

namespace py = pybind11;

namespace pycoll {

namespace {

py::list network_interfaces(const std::string& towards, const std::string& pinned) {
  std::vector<tcp::NetworkInterface> all;
  {
    const py::gil_scoped_release unlocked;  // resolving a name may take seconds
    all = tcp::choose_interfaces(towards, pinned);
  }
  py::list rows;
  for (const tcp::NetworkInterface& one : all) {
    py::list addresses;
    for (const tcp::InterfaceAddress& own : one.addresses)
      addresses.append(own.address.host() + "/" + std::to_string(own.prefix));
    py::dict row;
    row["name"] = one.name;
    row["addresses"] = addresses;
    row["up"] = one.up;
    row["loopback"] = one.loopback;
    row["internal"] = one.internal;
    row["chosen"] = one.chosen;
    row["reason"] = one.reason;
    rows.append(row);
  }
  return rows;
}

py::dict ucx_information() {
  ucx::Information information;
  {
    const py::gil_scoped_release unlocked;
    information = ucx::information();
  }
  py::dict found;
  found["found"] = information.found;
  found["path"] = information.path;
  found["origin"] = information.origin;
  found["version"] = information.version;
  found["transports"] = information.transports;
  found["passed_over"] = information.passed_over;
  found["rdma_devices"] = information.rdma_devices;
  return found;
}

}  // namespace

void bind_network(py::module_& module) {
  // A dict an interface: name, addresses ("10.0.0.1/24"), up, loopback, internal (a bridge to containers),
  // chosen, reason. Raises as choose_interfaces() does.
  module.def("network_interfaces", &network_interfaces, py::arg("towards") = "", py::arg("pinned") = "");
  // See pycoll/_ucx.py.
  module.def("set_ucx_search_path", &ucx::set_search_path, py::arg("folder"));
  module.def("ucx_information", &ucx_information);
}

}  // namespace pycoll
