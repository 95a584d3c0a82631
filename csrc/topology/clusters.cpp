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

// From one rank to each of the others. One source at a time: the routes of all pairs of a thousand ranks
// would fill gigabytes.
std::vector<Nearness> nearness_from(const Topology& topology, int rank, const std::vector<int>& others) {
  std::vector<std::pair<int, int>> ends;
  for (int other : others) ends.emplace_back(rank, other);
  const RouteTable routes = find_routes(topology, ends, Routing::Spread, 0);
  std::vector<Nearness> nearness;
  for (size_t i = 0; i < ends.size(); ++i) {
    double hops = 0;
    for (const Hop& hop : routes.of(i)) hops += hop.share;
    nearness.push_back({std::round(std::log(routes.rate[i]) * -1e6), static_cast<int>(std::lround(hops))});
  }
  return nearness;
}

std::vector<int> without(std::vector<int> ranks, int rank) {
  std::erase(ranks, rank);
  return ranks;
}

// Of groups, given by their indices: how near the first rank of one is to the nearest of the other.
std::vector<Pair> pairs_by_nearness(const Topology& topology, const RankGroups& groups) {
  std::vector<Pair> pairs;
  for (int a = 0; a < static_cast<int>(groups.size()); ++a) {
    std::vector<int> others, group_of;
    for (int b = 0; b < static_cast<int>(groups.size()); ++b)
      for (int rank : groups[at(b)])
        if (a != b) {
          others.push_back(rank);
          group_of.push_back(b);
        }
    const auto nearness = nearness_from(topology, groups[at(a)].front(), others);
    for (size_t i = 0; i < others.size(); ++i) {
      if (i == 0 || group_of[i] != group_of[i - 1]) pairs.push_back({nearness[i], a, group_of[i]});
      pairs.back().nearness = std::min(pairs.back().nearness, nearness[i]);
    }
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

// Levels of these groups, as lists of their indices, from all pairs of them.
std::vector<RankGroups> clusters_of(const Topology& topology, const RankGroups& members) {
  std::vector<RankGroups> levels;
  if (members.size() < 3) return levels;
  const std::vector<Pair> pairs = pairs_by_nearness(topology, members);
  Joined joined(static_cast<int>(members.size()));
  size_t last_count = members.size();
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

// The innermost groups, each from what its first rank sees: those that are nearest to it. Empty where these
// overlap, or where there is but one.
RankGroups nearest_groups(const Topology& topology) {
  RankGroups groups;
  std::vector<int> all(at(topology.rank_count()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<char> taken(all.size(), 0);
  for (int rank : all) {
    if (taken[at(rank)]) continue;
    const auto others = without(all, rank);
    const auto nearness = nearness_from(topology, rank, others);
    const Nearness nearest = *std::ranges::min_element(nearness);
    groups.push_back({rank});
    for (size_t i = 0; i < others.size(); ++i)
      if (nearness[i] == nearest) groups.back().push_back(others[i]);
    for (int member : groups.back()) {
      if (taken[at(member)]) return {};
      taken[at(member)] = 1;
    }
    std::ranges::sort(groups.back());
  }
  return groups.size() > 1 ? groups : RankGroups();
}

// To look at all pairs of more ranks takes too long.
constexpr int kMostRanksInPairs = 128;

}  // namespace

std::vector<RankGroups> find_clusters(const Topology& topology) {
  if (topology.rank_count() <= kMostRanksInPairs) {
    RankGroups single;
    for (int rank = 0; rank < topology.rank_count(); ++rank) single.push_back({rank});
    return clusters_of(topology, single);
  }
  const RankGroups innermost = nearest_groups(topology);
  if (innermost.empty()) return {};
  std::vector<RankGroups> levels = {innermost};
  if (innermost.size() > at(8 * kMostRanksInPairs)) return levels;
  for (const RankGroups& outer : clusters_of(topology, innermost)) {
    RankGroups groups;
    for (const auto& indices : outer) {
      groups.emplace_back();
      for (int index : indices)
        groups.back().insert(groups.back().end(), innermost[at(index)].begin(), innermost[at(index)].end());
      std::ranges::sort(groups.back());
    }
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
