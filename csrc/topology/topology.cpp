#include "topology/topology.h"

#include <cmath>
#include <string_view>
#include <unordered_set>

#include "core/error.h"
#include "topology/adjacency.h"

namespace pycoll {

namespace {

class Checker {
 public:
  explicit Checker(const Topology& topology) : topology_(topology) {}

  void check() const {
    if (topology_.nodes.empty()) fail("has no nodes");
    std::unordered_set<std::string_view> names;
    for (const Node& node : topology_.nodes) {
      check_node(node);
      if (!names.insert(node.name).second) fail("has two nodes named '" + node.name + "'");
    }
    names.clear();
    for (size_t i = 0; i < topology_.links.size(); ++i) {
      check_link(topology_.links[i], i);
      if (!names.insert(topology_.links[i].name).second)
        fail("has two links named '" + topology_.links[i].name + "'");
    }
    check_ranks();
    check_reach();
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw TopologyError("topology '" + topology_.name + "' " + reason);
  }

  void require(bool holds, const std::string& what, const char* field, const std::string& rule) const {
    if (!holds) fail("has " + what + " whose " + field + " is not " + rule);
  }

  void check_node(const Node& node) const {
    const std::string what = (node.kind == NodeKind::Device ? "a device '" : "a switch '") + node.name + "'";
    require(!node.name.empty(), what, "name", "given");
    require(node.ports >= 0, what, "number of ports", "0 (any number) or more");
    require(std::isfinite(node.overhead) && node.overhead >= 0, what, "overhead", "0 seconds or more");
    require(node.copy_rate > 0, what, "copy rate", "more than 0 bytes/s");
    require(node.reduce_rate > 0, what, "reduce rate", "more than 0 bytes/s");
  }

  void check_link(const Link& link, size_t index) const {
    const std::string what = "a link '" + link.name + "' (number " + std::to_string(index) + ")";
    require(!link.name.empty(), what, "name", "given");
    require(is_node(link.from) && is_node(link.to), what, "end",
            "a node: there are " + std::to_string(topology_.nodes.size()));
    require(link.from != link.to, what, "far end", "another node");
    require(std::isfinite(link.bandwidth) && link.bandwidth > 0, what, "bandwidth",
            "finite and more than 0 bytes/s");
    require(std::isfinite(link.latency) && link.latency >= 0, what, "latency", "0 seconds or more");
  }

  void check_ranks() const {
    if (topology_.ranks.empty()) fail("has no ranks");
    std::vector<int> rank_of(topology_.nodes.size(), -1);
    for (int rank = 0; rank < topology_.rank_count(); ++rank) {
      const int node = topology_.ranks[static_cast<size_t>(rank)];
      const std::string which = "places rank " + std::to_string(rank) + " on ";
      if (!is_node(node)) fail(which + "node number " + std::to_string(node) + ", which there is not");
      const Node& device = topology_.nodes[static_cast<size_t>(node)];
      if (device.kind != NodeKind::Device)
        fail(which + "'" + device.name + "', which is a switch: ranks live on devices");
      int& other = rank_of[static_cast<size_t>(node)];
      if (other >= 0) fail(which + "'" + device.name + "', where rank " + std::to_string(other) + " is");
      other = rank;
    }
  }

  // From every rank to every other one, through switches and devices that forward only.
  void check_reach() const {
    const Adjacency leaving(topology_, Adjacency::Side::Leaving);
    std::vector<int> seen_from(topology_.nodes.size(), -1);
    std::vector<int> queue;
    for (int rank = 0; rank < topology_.rank_count(); ++rank) {
      queue.assign(1, topology_.ranks[static_cast<size_t>(rank)]);
      seen_from[static_cast<size_t>(queue[0])] = rank;
      for (size_t i = 0; i < queue.size(); ++i) {
        if (i > 0 && !topology_.forwards(queue[i])) continue;
        for (int link : leaving.of(queue[i])) {
          const int to = topology_.links[static_cast<size_t>(link)].to;
          if (seen_from[static_cast<size_t>(to)] == rank) continue;
          seen_from[static_cast<size_t>(to)] = rank;
          queue.push_back(to);
        }
      }
      for (int other = 0; other < topology_.rank_count(); ++other)
        if (seen_from[static_cast<size_t>(topology_.ranks[static_cast<size_t>(other)])] != rank)
          fail("has no way from rank " + std::to_string(rank) + " ('" + topology_.device_of(rank).name +
               "') to rank " + std::to_string(other) + " ('" + topology_.device_of(other).name +
               "'): only switches, and devices that forward, are passed");
    }
  }

  bool is_node(int index) const { return index >= 0 && static_cast<size_t>(index) < topology_.nodes.size(); }

  const Topology& topology_;
};

}  // namespace

void Topology::check() const {
  Checker(*this).check();
}

}  // namespace pycoll
