#include "engine/placement.h"

#include <map>

namespace pycoll {

Placement Placement::from(const std::vector<std::string>& keys, const std::vector<std::string>& names) {
  Placement placement;
  std::map<std::string, int> hosts;
  for (size_t rank = 0; rank < keys.size(); ++rank) {
    const auto [host, is_new] = hosts.try_emplace(keys[rank], static_cast<int>(placement.hosts.size()));
    if (is_new) placement.hosts.push_back({names[rank], {}});
    auto& ranks = placement.hosts[static_cast<size_t>(host->second)].ranks;
    placement.host_of.push_back(host->second);
    placement.local_of.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
  return placement;
}

std::shared_ptr<const Topology> Placement::topology() const {
  // Only the ratio matters: memory is much quicker than any wire.
  constexpr double kMemory = 10e9, kWire = 1e9;
  constexpr double kMemoryLatency = 1e-6, kWireLatency = 20e-6;
  auto topology = std::make_shared<Topology>();
  topology->name = "hosts of the group";
  const auto add_node = [&](std::string name, NodeKind kind) {
    topology->nodes.push_back({.name = std::move(name), .kind = kind});
    return static_cast<int>(topology->nodes.size()) - 1;
  };
  const auto connect = [&](int a, int b, double bandwidth, double latency) {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)})
      topology->links.push_back({.from = from,
                                 .to = to,
                                 .bandwidth = bandwidth,
                                 .latency = latency,
                                 .name = topology->nodes[static_cast<size_t>(from)].name + "->" +
                                         topology->nodes[static_cast<size_t>(to)].name});
  };
  topology->ranks.resize(host_of.size());
  const int network = add_node("network", NodeKind::Switch);
  for (size_t h = 0; h < hosts.size(); ++h) {
    const std::string name = "host" + std::to_string(h);
    const bool alone = hosts[h].ranks.size() == 1;
    const int host = alone ? network : add_node(name, NodeKind::Switch);
    if (!alone) connect(host, network, kWire, kWireLatency);
    for (const int rank : hosts[h].ranks) {
      const int device = add_node("rank" + std::to_string(rank), NodeKind::Device);
      topology->ranks[static_cast<size_t>(rank)] = device;
      connect(device, host, alone ? kWire : kMemory, alone ? kWireLatency : kMemoryLatency);
    }
  }
  return topology;
}

}  // namespace pycoll
