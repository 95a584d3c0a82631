#include "topology/max_flow.h"

#include <algorithm>

namespace pycoll {

int FlowNetwork::add_arc(int from, int to, Amount capacity) {
  const auto link = [&](int tail, int tip) {
    edges_.push_back({tip, head_[static_cast<size_t>(tail)], 0});
    head_[static_cast<size_t>(tail)] = static_cast<int>(edges_.size()) - 1;
  };
  link(from, to);
  link(to, from);
  capacity_.push_back(capacity);
  return static_cast<int>(capacity_.size()) - 1;
}

FlowNetwork::Amount FlowNetwork::max_flow(int source, int sink) {
  for (size_t arc = 0; arc < capacity_.size(); ++arc) {
    edges_[2 * arc].residual = capacity_[arc];
    edges_[2 * arc + 1].residual = 0;
  }
  Amount flow = 0;
  while (flow < kUnlimited && find_levels(source, sink)) {
    next_edge_ = head_;
    while (const Amount more = augment(source, sink, kUnlimited)) {
      flow += more;
      if (flow >= kUnlimited) break;
    }
  }
  find_sink_side(sink);
  return flow;
}

// Distances from the source in the residual network; false when the sink is out of reach.
bool FlowNetwork::find_levels(int source, int sink) {
  level_.assign(head_.size(), kNone);
  queue_.assign(1, source);
  level_[static_cast<size_t>(source)] = 0;
  for (size_t i = 0; i < queue_.size(); ++i) {
    const auto node = static_cast<size_t>(queue_[i]);
    for (int e = head_[node]; e != kNone; e = edges_[static_cast<size_t>(e)].next) {
      const Edge& edge = edges_[static_cast<size_t>(e)];
      if (edge.residual == 0 || level_[static_cast<size_t>(edge.to)] != kNone) continue;
      level_[static_cast<size_t>(edge.to)] = level_[node] + 1;
      if (edge.to == sink) return true;
      queue_.push_back(edge.to);
    }
  }
  return false;
}

// Pushes up to `limit` from the node to the sink along levels; an edge that leads nowhere is not tried again.
FlowNetwork::Amount FlowNetwork::augment(int node, int sink, Amount limit) {
  if (node == sink) return limit;
  const auto at = static_cast<size_t>(node);
  Amount pushed = 0;
  for (int& e = next_edge_[at]; e != kNone; e = edges_[static_cast<size_t>(e)].next) {
    Edge& edge = edges_[static_cast<size_t>(e)];
    if (edge.residual == 0 || level_[static_cast<size_t>(edge.to)] != level_[at] + 1) continue;
    const Amount amount = augment(edge.to, sink, std::min(limit - pushed, edge.residual));
    edge.residual -= amount;
    edges_[static_cast<size_t>(e ^ 1)].residual += amount;
    pushed += amount;
    if (pushed == limit) return pushed;
  }
  return pushed;
}

void FlowNetwork::find_sink_side(int sink) {
  sink_side_.assign(head_.size(), 0);
  sink_side_[static_cast<size_t>(sink)] = 1;
  queue_.assign(1, sink);
  for (size_t i = 0; i < queue_.size(); ++i)
    for (int e = head_[static_cast<size_t>(queue_[i])]; e != kNone; e = edges_[static_cast<size_t>(e)].next) {
      const int from = edges_[static_cast<size_t>(e)].to;
      if (sink_side_[static_cast<size_t>(from)] || edges_[static_cast<size_t>(e ^ 1)].residual == 0) continue;
      sink_side_[static_cast<size_t>(from)] = 1;
      queue_.push_back(from);
    }
}

}  // namespace pycoll
