#include "topology/rank_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "topology/clusters.h"
#include "topology/routes.h"

namespace pycoll {

namespace {

size_t at(int index) {
  return static_cast<size_t>(index);
}

// Local search costs about n^3 times the length of routes.
constexpr int kMostRanksSearched = 128;

class RingSearch {
 public:
  explicit RingSearch(const Topology& topology)
      : topology_(topology), n_(topology.rank_count()), load_(topology.links.size()) {
    std::vector<std::pair<int, int>> pairs;
    for (int from = 0; from < n_; ++from)
      for (int to = 0; to < n_; ++to)
        if (from != to) pairs.emplace_back(from, to);
    routes_ = find_routes(topology, pairs, Routing::Spread, 0);
    for (const Link& link : topology.links) fastest_ = std::max(fastest_, link.bandwidth);
  }

  // What a ring takes: first the time of the busiest link, then that of all, both in a high power's sum.
  double cost(const std::vector<int>& order) {
    std::ranges::fill(load_, 0);
    for (int i = 0; i < n_; ++i)
      for (const Hop& hop : route(order[at(i)], order[at((i + 1) % n_)])) load_[at(hop.link)] += hop.share;
    double sum = 0;
    for (size_t link = 0; link < load_.size(); ++link) {
      if (load_[link] == 0) continue;
      const double time = load_[link] * fastest_ / topology_.links[link].bandwidth;
      sum += time * time * time * time * time * time;
    }
    return sum;
  }

  // From rank 0 always on to the nearest rank that is left.
  std::vector<int> nearest_first() {
    std::vector<int> order = {0};
    std::vector<char> used(at(n_), 0);
    used[0] = 1;
    while (static_cast<int>(order.size()) < n_) {
      int best = -1;
      for (int next = 0; next < n_; ++next)
        if (!used[at(next)] && (best < 0 || nearer(order.back(), next, best))) best = next;
      used[at(best)] = 1;
      order.push_back(best);
    }
    return order;
  }

  // Reverses stretches (2-opt) and moves single ranks as long as that lowers the cost.
  double improve(std::vector<int>& order) {
    double best = cost(order);
    for (bool improved = true; improved;) {
      improved = false;
      for (int first = 1; first < n_; ++first)
        for (int last = first + 1; last < n_; ++last) {
          const auto begin = order.begin() + first, end = order.begin() + last + 1;
          const auto keep = [&](auto undo) {
            const double now = cost(order);
            if (now < best * (1 - 1e-9)) {
              best = now;
              improved = true;
            } else {
              undo();
            }
          };
          std::reverse(begin, end);
          keep([&] { std::reverse(begin, end); });
          std::rotate(begin, begin + 1, end);
          keep([&] { std::rotate(begin, end - 1, end); });
        }
    }
    return best;
  }

 private:
  std::span<const Hop> route(int from, int to) const {
    return routes_.of(at(from) * at(n_ - 1) + at(to) - (to > from ? 1 : 0));
  }

  bool nearer(int from, int a, int b) const {
    const auto pair = [&](int to) { return at(from) * at(n_ - 1) + at(to) - (to > from ? 1 : 0); };
    const double rate_a = routes_.rate[pair(a)], rate_b = routes_.rate[pair(b)];
    if (std::abs(rate_a - rate_b) > 1e-6 * rate_b) return rate_a > rate_b;
    return routes_.of(pair(a)).size() < routes_.of(pair(b)).size();
  }

  const Topology& topology_;
  const int n_;
  RouteTable routes_;
  std::vector<double> load_;
  double fastest_ = 0;
};

}  // namespace

std::vector<int> ring_order(const Topology& topology) {
  const int n = topology.rank_count();
  std::vector<int> own(at(n));
  std::iota(own.begin(), own.end(), 0);
  if (n < 4) return own;
  if (n > kMostRanksSearched) return clustered_order(topology);
  RingSearch search(topology);
  std::vector<int> best = own;
  double least = search.cost(best);
  for (std::vector<int> order : {own, clustered_order(topology), search.nearest_first()}) {
    const double cost = search.improve(order);
    if (cost >= least * (1 - 1e-9)) continue;
    least = cost;
    best = std::move(order);
  }
  return best;
}

std::vector<int> chain_order(const Topology& topology, int first) {
  if (!find_clusters(topology).empty()) return clustered_order(topology, first);
  std::vector<int> order = ring_order(topology);
  std::ranges::rotate(order, std::ranges::find(order, first));
  return order;
}

}  // namespace pycoll
