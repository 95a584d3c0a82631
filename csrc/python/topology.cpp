#include "topology/topology.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "python/bindings.h"
#include "topology/routes.h"

namespace py = pybind11;

namespace pycoll {

namespace {

// name, "device" or "switch", ports, overhead, copy rate, reduce rate, forwards
using NodeRow = std::tuple<std::string, std::string, int, double, double, double, bool>;
// from, to, bandwidth, latency, name
using LinkRow = std::tuple<int, int, double, double, std::string>;

Node make_node(NodeRow row) {
  auto& [name, kind, ports, overhead, copy_rate, reduce_rate, forwards] = row;
  if (kind != "device" && kind != "switch")
    throw TopologyError("node '" + name + "' is a '" + kind + "'; there are: device, switch");
  return {std::move(name), kind == "device" ? NodeKind::Device : NodeKind::Switch,
          ports,           overhead,
          copy_rate,       reduce_rate,
          forwards};
}

// "a->b"; where there are several, "a->b#0", "a->b#1".
void name_nameless_links(Topology& topology) {
  std::map<std::pair<int, int>, int> parallel;
  for (const Link& link : topology.links) ++parallel[{link.from, link.to}];
  std::map<std::pair<int, int>, int> next;
  for (Link& link : topology.links) {
    const std::pair<int, int> ends{link.from, link.to};
    const int number = next[ends]++;
    const auto known = [&](int node) {
      return node >= 0 && static_cast<size_t>(node) < topology.nodes.size();
    };
    if (!link.name.empty() || !known(link.from) || !known(link.to)) continue;
    link.name = topology.nodes[static_cast<size_t>(link.from)].name + "->" +
                topology.nodes[static_cast<size_t>(link.to)].name;
    if (parallel[ends] > 1) link.name += "#" + std::to_string(number);
  }
}

std::shared_ptr<Topology> make_topology(std::string name, std::vector<NodeRow> nodes,
                                        std::vector<LinkRow> links, std::vector<int> ranks) {
  auto topology = std::make_shared<Topology>();
  topology->name = std::move(name);
  for (NodeRow& row : nodes) topology->nodes.push_back(make_node(std::move(row)));
  for (LinkRow& row : links) {
    auto& [from, to, bandwidth, latency, link_name] = row;
    topology->links.push_back({from, to, bandwidth, latency, std::move(link_name)});
  }
  topology->ranks = std::move(ranks);
  name_nameless_links(*topology);
  topology->check();
  return topology;
}

py::list node_rows(const Topology& topology) {
  py::list rows;
  for (const Node& node : topology.nodes)
    rows.append(py::make_tuple(node.name, node.kind == NodeKind::Device ? "device" : "switch", node.ports,
                               node.overhead, node.copy_rate, node.reduce_rate, node.forwards));
  return rows;
}

py::list link_rows(const Topology& topology) {
  py::list rows;
  for (const Link& link : topology.links)
    rows.append(py::make_tuple(link.from, link.to, link.bandwidth, link.latency, link.name));
  return rows;
}

// (latency, [(link, share)])
py::tuple route(const Topology& topology, int src, int dst, std::string_view routing, uint64_t seed) {
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < topology.rank_count(); };
  if (!is_rank(src) || !is_rank(dst) || src == dst)
    throw InvalidArgument("a route leads from one rank to another; " + std::to_string(src) + " and " +
                          std::to_string(dst) + " are not two of " + std::to_string(topology.rank_count()));
  const std::vector<std::pair<int, int>> pairs{{src, dst}};
  const RouteTable table = find_routes(topology, pairs, parse_routing(routing), seed);
  py::list hops;
  for (const Hop& hop : table.of(0)) hops.append(py::make_tuple(hop.link, hop.share));
  return py::make_tuple(table.latency[0], hops);
}

}  // namespace

Routing parse_routing(std::string_view name) {
  if (name == "spread") return Routing::Spread;
  if (name == "hash") return Routing::Hash;
  throw InvalidArgument("there is no routing '" + std::string(name) + "'; there are: spread, hash");
}

void bind_topology(py::module_& module) {
  py::class_<Topology, std::shared_ptr<Topology>>(module, "Topology")
      .def(py::init(&make_topology), py::arg("name"), py::arg("nodes"), py::arg("links"), py::arg("ranks"))
      .def_readonly("name", &Topology::name)
      .def_property_readonly("nodes", &node_rows)
      .def_property_readonly("links", &link_rows)
      .def_property_readonly("ranks", [](const Topology& self) { return self.ranks; })
      .def_property_readonly("rank_count", &Topology::rank_count)
      .def("route", &route, py::arg("src"), py::arg("dst"), py::arg("routing") = "spread",
           py::arg("seed") = 0);
}

}  // namespace pycoll
