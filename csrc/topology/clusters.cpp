#include "topology/clusters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "topology/routes.h"

namespace pycoll {

namespace {

size_t at(int index) {
  return static_cast<size_t>(index);
}

// How near two ranks are: less is nearer.
struct Nearness {
  double slowness;  // seconds a byte, rounded so that equal routes are equal
  int hops;
  auto operator<=>(const Nearness&) const = default;
};

struct Pair {
  Nearness nearness;
  int a, b;
};

std::vector<Pair> pairs_by_nearness(const Topology& topology) {
  std::vector<std::pair<int, int>> ends;
  for (int a = 0; a < topology.rank_count(); ++a)
    for (int b = 0; b < topology.rank_count(); ++b)
      if (a != b) ends.emplace_back(a, b);
  const RouteTable routes = find_routes(topology, ends, Routing::Spread, 0);
  std::vector<Pair> pairs;
  for (size_t i = 0; i < ends.size(); ++i) {
    double hops = 0;
    for (const Hop& hop : routes.of(i)) hops += hop.share;
    const double slowness = std::round(std::log(routes.rate[i]) * -1e6);
    pairs.push_back({{slowness, static_cast<int>(std::lround(hops))}, ends[i].first, ends[i].second});
  }
  std::ranges::stable_sort(pairs, {}, &Pair::nearness);
  return pairs;
}

class Joined {
 public:
  explicit Joined(int count) : top_(at(count)), edges_(at(count), 0), size_(at(count), 1) {
    std::iota(top_.begin(), top_.end(), 0);
  }
  int find(int rank) {
    while (top_[at(rank)] != rank) rank = top_[at(rank)] = top_[at(top_[at(rank)])];
    return rank;
  }
  void add_edge(int a, int b) {
    a = find(a), b = find(b);
    if (a != b) {
      top_[at(a)] = b;
      edges_[at(b)] += edges_[at(a)];
      size_[at(b)] += size_[at(a)];
    }
    ++edges_[at(b)];
  }
  // Whether every pair inside each group was added, in both directions.
  bool close_throughout() {
    for (int rank = 0; rank < static_cast<int>(top_.size()); ++rank)
      if (find(rank) == rank && edges_[at(rank)] != size_[at(rank)] * (size_[at(rank)] - 1)) return false;
    return true;
  }
  RankGroups groups() {
    std::map<int, std::vector<int>> by_top;
    for (int rank = 0; rank < static_cast<int>(top_.size()); ++rank) by_top[find(rank)].push_back(rank);
    RankGroups groups;
    for (auto& entry : by_top) groups.push_back(std::move(entry.second));
    std::ranges::sort(groups);
    return groups;
  }

 private:
  std::vector<int> top_;
  std::vector<int64_t> edges_, size_;
};

}  // namespace

std::vector<RankGroups> find_clusters(const Topology& topology) {
  const int n = topology.rank_count();
  std::vector<RankGroups> levels;
  if (n < 3) return levels;
  const std::vector<Pair> pairs = pairs_by_nearness(topology);
  Joined joined(n);
  size_t last_count = at(n);
  for (size_t first = 0; first < pairs.size();) {
    size_t end = first;
    for (; end < pairs.size() && pairs[end].nearness == pairs[first].nearness; ++end)
      joined.add_edge(pairs[end].a, pairs[end].b);
    first = end;
    RankGroups groups = joined.groups();
    if (groups.size() == 1) break;
    if (groups.size() == last_count || !joined.close_throughout()) continue;
    last_count = groups.size();
    levels.push_back(std::move(groups));
  }
  return levels;
}

std::vector<int> clustered_order(const Topology& topology, int first) {
  const auto levels = find_clusters(topology);
  std::vector<int> order(at(topology.rank_count()));
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + first, order.end());
  // From the innermost level outwards; stable, so that inner groups stay together.
  for (const RankGroups& groups : levels) {
    std::vector<int> group_of(order.size());
    for (const auto& group : groups) {
      const bool leads = std::ranges::find(group, first) != group.end();
      for (int rank : group) group_of[at(rank)] = leads ? -1 : group.front();
    }
    std::ranges::stable_sort(order, {}, [&](int rank) { return group_of[at(rank)]; });
  }
  return order;
}

}  // namespace pycoll
