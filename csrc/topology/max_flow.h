// Maximum flow, exact in integers, by Dinic's algorithm: shortest paths' levels, then blocking flows.
// E. A. Dinic, Algorithm for solution of a problem of maximum flow in a network with power estimation, Soviet
// Mathematics Doklady 11 (1970).
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace pycoll {

class FlowNetwork {
 public:
  using Amount = int64_t;
  static constexpr Amount kUnlimited = std::numeric_limits<Amount>::max() / 4;

  explicit FlowNetwork(int nodes) : head_(static_cast<size_t>(nodes), kNone) {}

  // Index of the arc, for set_capacity. All arcs' capacities that are limited must sum to less than
  // kUnlimited.
  int add_arc(int from, int to, Amount capacity);
  void set_capacity(int arc, Amount capacity) { capacity_[static_cast<size_t>(arc)] = capacity; }

  // The greatest flow, worked out anew. kUnlimited or more where nothing limits it.
  Amount max_flow(int source, int sink);

  // Of the last max_flow: whether flow could still get from the node to the sink. These nodes are the least
  // of all minimum cuts' sink sides.
  bool on_sink_side(int node) const { return sink_side_[static_cast<size_t>(node)]; }

 private:
  static constexpr int kNone = -1;

  // Edge 2 * arc is the arc, edge 2 * arc + 1 its way back.
  struct Edge {
    int to;
    int next;
    Amount residual;
  };

  bool find_levels(int source, int sink);
  Amount augment(int node, int sink, Amount limit);
  void find_sink_side(int sink);

  std::vector<int> head_;
  std::vector<Edge> edges_;
  std::vector<Amount> capacity_;
  std::vector<int> level_, next_edge_, queue_;
  std::vector<char> sink_side_;
};

}  // namespace pycoll
