#include "topology/routes.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "core/error.h"
#include "topology/adjacency.h"

namespace pycoll {

namespace {

// Sums of latencies in another order differ in their last digits.
constexpr double kSameLatency = 1 + 1e-12;

// In [0, 1). Of devices, not of ranks: a machine's routes stay when its ranks are reordered.
double hash_to_unit(uint64_t seed, int from, int to) {
  const uint64_t pair = static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to);
  return static_cast<double>(mix_bits(mix_bits(seed) ^ pair) >> 11) * 0x1p-53;
}

class RouteFinder {
 public:
  explicit RouteFinder(const Topology& topology)
      : topology_(topology),
        leaving_(topology, Adjacency::Side::Leaving),
        entering_(topology, Adjacency::Side::Entering),
        widest_(topology.nodes.size()),
        hops_(topology.nodes.size()),
        latency_(topology.nodes.size()),
        paths_(topology.nodes.size()),
        part_(topology.nodes.size()) {}

  void begin_source(int source) {
    source_ = source;
    width_ = 0;
    find_widest();
  }

  bool reaches(int target) const { return widest_[at(target)] > 0; }

  // Appends the hops of the route; returns its latency. A negative `pick` takes all paths, one in [0, 1) that
  // path.
  double append_route(int target, double pick, std::vector<Hop>& hops) {
    if (widest_[at(target)] != width_) find_shortest(widest_[at(target)]);
    if (pick < 0)
      append_all(target, hops);
    else
      append_one(target, pick, hops);
    return latency_[at(target)];
  }

 private:
  static size_t at(int index) { return static_cast<size_t>(index); }
  const Link& link(int index) const { return topology_.links[at(index)]; }
  bool sends_on(int node) const { return node == source_ || topology_.forwards(node); }

  // Dijkstra's algorithm with the narrowest link for the sum: the greatest bottleneck to every node.
  void find_widest() {
    std::fill(widest_.begin(), widest_.end(), 0.0);
    widest_[at(source_)] = std::numeric_limits<double>::infinity();
    std::priority_queue<std::pair<double, int>> queue;
    queue.emplace(widest_[at(source_)], source_);
    while (!queue.empty()) {
      const auto [width, node] = queue.top();
      queue.pop();
      if (width < widest_[at(node)] || !sends_on(node)) continue;
      for (int out : leaving_.of(node)) {
        const double through = std::min(width, link(out).bandwidth);
        double& best = widest_[at(link(out).to)];
        if (through <= best) continue;
        best = through;
        queue.emplace(through, link(out).to);
      }
    }
  }

  // Breadth first over the links that are at least so wide: hops, latency and number of shortest paths.
  void find_shortest(double width) {
    width_ = width;
    std::fill(hops_.begin(), hops_.end(), -1);
    order_.assign(1, source_);
    hops_[at(source_)] = 0;
    latency_[at(source_)] = 0;
    paths_[at(source_)] = 1;
    for (size_t i = 0; i < order_.size(); ++i) {
      const int node = order_[i];
      if (i > 0) {
        paths_[at(node)] = 0;
        for (int in : entering_.of(node))
          if (on_shortest_path(in)) paths_[at(node)] += paths_[at(link(in).from)];
        if (!sends_on(node)) continue;
      }
      for (int out : leaving_.of(node)) {
        if (link(out).bandwidth < width) continue;
        const int to = link(out).to;
        const double latency = latency_[at(node)] + link(out).latency;
        if (hops_[at(to)] < 0) {
          hops_[at(to)] = hops_[at(node)] + 1;
          latency_[at(to)] = latency;
          order_.push_back(to);
        } else if (hops_[at(to)] == hops_[at(node)] + 1) {
          latency_[at(to)] = std::min(latency_[at(to)], latency);
        }
      }
    }
  }

  // Of a link into a node whose latency is settled.
  bool on_shortest_path(int in) const {
    const Link& last = link(in);
    return last.bandwidth >= width_ && hops_[at(last.from)] >= 0 && sends_on(last.from) &&
           hops_[at(last.from)] + 1 == hops_[at(last.to)] &&
           latency_[at(last.from)] + last.latency <= latency_[at(last.to)] * kSameLatency;
  }

  // From the target back: a node's part of the transfer comes in over its links by the paths behind each.
  void append_all(int target, std::vector<Hop>& hops) {
    back_.assign(1, target);
    part_[at(target)] = 1;
    for (size_t i = 0; i < back_.size(); ++i) {
      const int node = back_[i];
      const double part = part_[at(node)];
      part_[at(node)] = 0;  // as it was, for the next route
      for (int in : entering_.of(node)) {
        if (node == source_ || !on_shortest_path(in)) continue;
        const int from = link(in).from;
        const double share = part * paths_[at(from)] / paths_[at(node)];
        hops.push_back({in, share});
        if (part_[at(from)] == 0) back_.push_back(from);  // after all nodes that are nearer to the target
        part_[at(from)] += share;
      }
    }
  }

  void append_one(int target, double pick, std::vector<Hop>& hops) {
    double path = pick * paths_[at(target)];
    for (int node = target; node != source_;) {
      int taken = -1;
      for (int in : entering_.of(node)) {
        if (!on_shortest_path(in)) continue;
        taken = in;
        if (path < paths_[at(link(in).from)]) break;
        path -= paths_[at(link(in).from)];
      }
      hops.push_back({taken, 1});
      node = link(taken).from;
    }
  }

  const Topology& topology_;
  const Adjacency leaving_;
  const Adjacency entering_;
  int source_ = -1;
  double width_ = 0;  // what hops_, latency_, paths_ are for
  std::vector<double> widest_;
  std::vector<int> hops_;
  std::vector<double> latency_;
  std::vector<double> paths_;
  std::vector<double> part_;
  std::vector<int> order_;
  std::vector<int> back_;
};

}  // namespace

RouteTable find_routes(const Topology& topology, std::span<const std::pair<int, int>> pairs, Routing routing,
                       uint64_t seed) {
  RouteFinder finder(topology);
  RouteTable table;
  table.begin.reserve(pairs.size() + 1);
  table.latency.reserve(pairs.size());
  table.rate.reserve(pairs.size());
  table.begin.push_back(0);
  int source = -1;
  for (const auto& [src, dst] : pairs) {
    const int from = topology.ranks[static_cast<size_t>(src)];
    const int to = topology.ranks[static_cast<size_t>(dst)];
    if (src != source) finder.begin_source(from);
    source = src;
    if (!finder.reaches(to))
      throw TopologyError("topology '" + topology.name + "' has no way from rank " + std::to_string(src) +
                          " to rank " + std::to_string(dst));
    const double pick = routing == Routing::Spread ? -1.0 : hash_to_unit(seed, from, to);
    table.latency.push_back(finder.append_route(to, pick, table.hops));
    double rate = std::numeric_limits<double>::infinity();
    for (size_t hop = table.begin.back(); hop < table.hops.size(); ++hop)
      rate = std::min(
          rate, topology.links[static_cast<size_t>(table.hops[hop].link)].bandwidth / table.hops[hop].share);
    table.rate.push_back(rate);
    table.begin.push_back(table.hops.size());
  }
  return table;
}

}  // namespace pycoll
