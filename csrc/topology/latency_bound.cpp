#include "topology/latency_bound.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace pycoll {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

size_t at(int index) {
  return static_cast<size_t>(index);
}

using Entry = std::pair<double, int>;  // seconds, node
using Queue = std::priority_queue<Entry, std::vector<Entry>, std::greater<>>;

// Shortest ways by latency, forwards or backwards along the links. A device that does not forward may still
// receive something and send it on, for its overhead.
class Ways {
 public:
  Ways(const Topology& topology, bool backwards) : topology_(topology), next_(topology.nodes.size()) {
    std::vector<char> holds_rank(topology.nodes.size(), 0);
    for (int node : topology.ranks) holds_rank[at(node)] = 1;
    for (size_t node = 0; node < topology.nodes.size(); ++node)
      passable_.push_back(topology.forwards(static_cast<int>(node)) || holds_rank[node]);
    for (const Link& link : topology.links) {
      const int from = backwards ? link.to : link.from, to = backwards ? link.from : link.to;
      next_[at(from)].emplace_back(link.latency, to);
    }
  }

  // Least seconds from the node to each: its overhead, links' latencies, the overhead of those that pass on.
  std::vector<double> from(int start) const {
    std::vector<double> seconds(next_.size(), kNever);
    Queue queue;
    seconds[at(start)] = 0;
    queue.emplace(0, start);
    while (!queue.empty()) {
      const auto [reached, node] = queue.top();
      queue.pop();
      if (reached > seconds[at(node)] || !passable_[at(node)]) continue;
      const double leave =
          reached + (topology_.forwards(node) && node != start ? 0 : topology_.nodes[at(node)].overhead);
      for (const auto& [latency, to] : next_[at(node)])
        if (leave + latency < seconds[at(to)]) {
          seconds[at(to)] = leave + latency;
          queue.emplace(leave + latency, to);
        }
    }
    return seconds;
  }

  // Least seconds to any of `inside` from a rank that is not, after its overhead or without: a search back
  // from them that ends at the first.
  double into(const std::vector<char>& inside, const std::vector<char>& holds_rank,
              bool after_overhead = true) const {
    std::vector<double> seconds(next_.size(), kNever);
    Queue queue;
    for (size_t node = 0; node < inside.size(); ++node)
      if (inside[node]) {
        seconds[node] = 0;
        queue.emplace(0, static_cast<int>(node));
      }
    double best = kNever;
    while (!queue.empty()) {
      const auto [reached, node] = queue.top();
      queue.pop();
      if (reached >= best) break;
      if (reached > seconds[at(node)]) continue;
      if (holds_rank[at(node)] && !inside[at(node)])
        best = std::min(best, reached + (after_overhead ? topology_.nodes[at(node)].overhead : 0));
      if (!inside[at(node)] && !topology_.forwards(node)) continue;
      for (const auto& [latency, to] : next_[at(node)])
        if (reached + latency < seconds[at(to)]) {
          seconds[at(to)] = reached + latency;
          queue.emplace(reached + latency, to);
        }
    }
    return best;
  }

 private:
  const Topology& topology_;
  std::vector<std::vector<Entry>> next_;  // latency, node
  std::vector<char> passable_;
};

std::vector<char> marked(const Topology& topology, const std::vector<int>& ranks) {
  std::vector<char> mark(topology.nodes.size(), 0);
  for (int rank : ranks) mark[at(topology.ranks[at(rank)])] = 1;
  return mark;
}

double farthest(const Topology& topology, const std::vector<double>& seconds) {
  double most = 0;
  for (int node : topology.ranks) most = std::max(most, seconds[at(node)]);
  return most;
}

// When the last of the ranks can know what one knew at the start, if all were as near and as quick as the
// nearest and the quickest: whoever knows it tells `ports` others every `overhead` seconds.
double spread_time(const Topology& topology, double nearest) {
  int ports = 0;
  double overhead = kNever;
  for (int node : topology.ranks) {
    const Node& device = topology.nodes[at(node)];
    if (device.ports == 0) return 0;
    ports = std::max(ports, device.ports);
    overhead = std::min(overhead, device.overhead);
  }
  std::priority_queue<double, std::vector<double>, std::greater<>> free_ports;  // and when
  for (int port = 0; port < ports; ++port) free_ports.push(0);
  double last = 0;
  for (int told = 1; told < topology.rank_count(); ++told) {
    const double start = free_ports.top();
    free_ports.pop();
    free_ports.push(start + overhead);
    last = start + nearest;
    for (int port = 0; port < ports; ++port) free_ports.push(last);
  }
  return last;
}

double least_link_latency_between_devices(const Topology& topology, const Ways& backwards) {
  const auto ranks = marked(topology, [&] {
    std::vector<int> all;
    for (int rank = 0; rank < topology.rank_count(); ++rank) all.push_back(rank);
    return all;
  }());
  double nearest = kNever;
  for (int rank = 0; rank < topology.rank_count(); ++rank)
    nearest = std::min(nearest, backwards.into(marked(topology, {rank}), ranks));
  return nearest;
}

}  // namespace

double entry_latency(const Topology& topology, const std::vector<int>& inside) {
  std::vector<char> holds_rank(topology.nodes.size(), 0);
  for (int node : topology.ranks) holds_rank[at(node)] = 1;
  const std::vector<char> mark = marked(topology, inside);
  // Apart, as bytes may begin to come in from a rank of little overhead and cease to from one that is near.
  double overhead = kNever;
  for (int node : topology.ranks)
    if (!mark[at(node)]) overhead = std::min(overhead, topology.nodes[at(node)].overhead);
  return overhead + Ways(topology, true).into(mark, holds_rank, false);
}

double latency_bound(const Topology& topology, CollectiveKind kind, int root) {
  const int n = topology.rank_count();
  if (n < 2) return 0;
  const Ways forwards(topology, false), backwards(topology, true);
  double seconds = 0;
  switch (kind) {
    case CollectiveKind::Broadcast:
    case CollectiveKind::Scatter:
      seconds = farthest(topology, forwards.from(topology.ranks[at(root)]));
      break;
    default:
      for (int rank = 0; rank < n; ++rank) {
        const auto reached = forwards.from(topology.ranks[at(rank)]);
        const bool to_root = kind == CollectiveKind::Reduce || kind == CollectiveKind::Gather;
        seconds =
            std::max(seconds, to_root ? reached[at(topology.ranks[at(root)])] : farthest(topology, reached));
      }
  }
  switch (kind) {
    case CollectiveKind::AllReduce:
    case CollectiveKind::AllGather:
    case CollectiveKind::Broadcast:
    case CollectiveKind::Barrier:
      return std::max(seconds,
                      spread_time(topology, least_link_latency_between_devices(topology, backwards)));
    default:
      return seconds;
  }
}

}  // namespace pycoll
