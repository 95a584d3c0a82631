#include "topology/spanning_trees.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace pycoll {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

size_t at(int index) {
  return static_cast<size_t>(index);
}

// The nodes of one cycle of child -> parent[child], if there is one.
std::vector<int> find_cycle(const std::vector<int>& parent) {
  std::vector<int> seen(parent.size(), -1);
  for (int start = 0; start < static_cast<int>(parent.size()); ++start) {
    int node = start;
    while (node >= 0 && seen[at(node)] < 0) {
      seen[at(node)] = start;
      node = parent[at(node)];
    }
    if (node < 0 || seen[at(node)] != start) continue;
    std::vector<int> cycle = {node};
    for (int next = parent[at(node)]; next != node; next = parent[at(next)]) cycle.push_back(next);
    return cycle;
  }
  return {};
}

// Nodes in an order in which parents come first.
std::vector<int> from_the_root(const std::vector<std::vector<int>>& neighbours, int root,
                               std::vector<int>& parent) {
  parent.assign(neighbours.size(), -1);
  std::vector<int> order = {root};
  for (size_t i = 0; i < order.size(); ++i)
    for (int other : neighbours[at(order[i])])
      if (other != parent[at(order[i])]) {
        parent[at(other)] = order[i];
        order.push_back(other);
      }
  return order;
}

}  // namespace

std::vector<int> cheapest_tree(const std::vector<double>& cost, int n, int start) {
  std::vector<int> parent(at(n), -1), depth(at(n), 0);
  std::vector<double> best(at(n), kInfinite);
  std::vector<char> in_tree(at(n), 0);
  int added = start;
  for (int count = 1; count < n; ++count) {
    in_tree[at(added)] = 1;
    int next = -1;
    for (int v = 0; v < n; ++v) {
      if (in_tree[at(v)]) continue;
      const double through = cost[at(added) * at(n) + at(v)] + cost[at(v) * at(n) + at(added)];
      const double margin = 1e-9 * through;
      if (through < best[at(v)] - margin ||
          (through <= best[at(v)] + margin && depth[at(added)] < depth[at(parent[at(v)])])) {
        best[at(v)] = through;
        parent[at(v)] = added;
      }
      if (next < 0 || best[at(v)] < best[at(next)]) next = v;
    }
    depth[at(next)] = depth[at(parent[at(next)])] + 1;
    added = next;
  }
  return parent;
}

std::vector<int> cheapest_arborescence(const std::vector<double>& cost, int n, int root) {
  const auto of = [&](int from, int to) { return cost[at(from) * at(n) + at(to)]; };
  std::vector<int> parent(at(n), -1);
  for (int v = 0; v < n; ++v)
    for (int u = 0; u < n; ++u)
      if (v != root && u != v && (parent[at(v)] < 0 || of(u, v) < of(parent[at(v)], v))) parent[at(v)] = u;
  const std::vector<int> cycle = find_cycle(parent);
  if (cycle.empty()) return parent;

  // The cycle becomes one node. Entering it at v saves the cycle's own edge into v.
  std::vector<int> renamed(at(n), -1), original;
  std::vector<char> in_cycle(at(n), 0);
  for (int v : cycle) in_cycle[at(v)] = 1;
  for (int v = 0; v < n; ++v)
    if (!in_cycle[at(v)]) {
      renamed[at(v)] = static_cast<int>(original.size());
      original.push_back(v);
    }
  const int merged = static_cast<int>(original.size()), small = merged + 1;
  std::vector<double> small_cost(at(small) * at(small), kInfinite);
  std::vector<int> entry(at(n), -1), exit(at(n), -1);  // of edges from, and to, each node outside
  for (int u : original) {
    for (int v : original) small_cost[at(renamed[at(u)]) * at(small) + at(renamed[at(v)])] = of(u, v);
    double& in = small_cost[at(renamed[at(u)]) * at(small) + at(merged)];
    double& out = small_cost[at(merged) * at(small) + at(renamed[at(u)])];
    for (int v : cycle) {
      if (const double saved = of(u, v) - of(parent[at(v)], v); entry[at(u)] < 0 || saved < in) {
        in = saved;
        entry[at(u)] = v;
      }
      if (exit[at(u)] < 0 || of(v, u) < out) {
        out = of(v, u);
        exit[at(u)] = v;
      }
    }
  }
  const auto small_parent = cheapest_arborescence(small_cost, small, renamed[at(root)]);
  std::vector<int> expanded = parent;
  for (int v : original) {
    if (v == root) continue;
    const int from = small_parent[at(renamed[at(v)])];
    expanded[at(v)] = from == merged ? exit[at(v)] : original[at(from)];
  }
  const int from = original[at(small_parent[at(merged)])];
  expanded[at(entry[at(from)])] = from;
  return expanded;
}

std::vector<int> rooted_at_centre(const std::vector<int>& parent, int& root) {
  std::vector<std::vector<int>> neighbours(parent.size());
  for (int v = 0; v < static_cast<int>(parent.size()); ++v)
    if (parent[at(v)] >= 0) {
      neighbours[at(v)].push_back(parent[at(v)]);
      neighbours[at(parent[at(v)])].push_back(v);
    }
  // The middle of a longest path, whose one end is farthest from anywhere.
  std::vector<int> up;
  const int end = from_the_root(neighbours, 0, up).back();
  std::vector<int> path = {from_the_root(neighbours, end, up).back()};
  while (up[at(path.back())] >= 0) path.push_back(up[at(path.back())]);
  root = path[path.size() / 2];
  from_the_root(neighbours, root, up);
  return up;
}

int height_of(const std::vector<int>& parent) {
  int height = 0;
  for (int v = 0; v < static_cast<int>(parent.size()); ++v) {
    int depth = 0;
    for (int node = v; parent[at(node)] >= 0; node = parent[at(node)]) ++depth;
    height = std::max(height, depth);
  }
  return height;
}

}  // namespace pycoll
