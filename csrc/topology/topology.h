// A machine as a graph: devices that ranks live on, switches that only forward, links between them. What the
// topology file says, with every group of equal nodes written out. The file itself is Python's business.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace pycoll {

enum class NodeKind : uint8_t { Device, Switch };

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct Node {
  std::string name;
  NodeKind kind = NodeKind::Device;
  // Of devices only.
  int ports = 0;                    // transfers that it sends (and receives) at once; 0: one a peer
  double overhead = 0;              // seconds that a transfer holds its ports beyond its bytes' time
  double copy_rate = kUnlimited;    // bytes/s of a copy inside the device
  double reduce_rate = kUnlimited;  // bytes/s added into a buffer
  bool forwards = false;            // others' transfers may pass through it, as through a torus' router
};

// One direction of a link. A full-duplex link is two of these; several between two nodes are several paths.
struct Link {
  int from = 0;  // indices of nodes
  int to = 0;
  double bandwidth = 0;  // bytes/s
  double latency = 0;    // seconds
  std::string name;      // "tor0->tor1", with "#k" where there are several
};

struct Topology {
  std::string name;
  std::vector<Node> nodes;
  std::vector<Link> links;
  std::vector<int> ranks;  // rank -> index of its device; no device twice

  int rank_count() const { return static_cast<int>(ranks.size()); }
  const Node& device_of(int rank) const {
    return nodes[static_cast<size_t>(ranks[static_cast<size_t>(rank)])];
  }
  // Whether transfers between other nodes may pass through the node.
  bool forwards(int node) const {
    const Node& passed = nodes[static_cast<size_t>(node)];
    return passed.kind == NodeKind::Switch || passed.forwards;
  }

  void check() const;  // TopologyError: an index out of range, a name that stands for two things, a rank on a
                       // switch, a rate that is not positive, ranks that cannot reach each other
};

}  // namespace pycoll
