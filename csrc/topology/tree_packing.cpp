#include "topology/tree_packing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <utility>

#include "topology/adjacency.h"
#include "topology/packing_program.h"
#include "topology/routes.h"
#include "topology/spanning_trees.h"

namespace pycoll {

namespace {

size_t at(int index) {
  return static_cast<size_t>(index);
}

// What it costs to get from rank to rank at given prices of links, and which links that takes.
class Ways {
 public:
  virtual ~Ways() = default;
  virtual void price(const std::vector<double>& prices, std::vector<double>& cost) = 0;
  virtual void add_use(int from, int to, std::vector<double>& use) const = 0;
  virtual bool allows(int, int) const { return true; }
};

class GivenRoutes : public Ways {
 public:
  GivenRoutes(const Topology& topology, bool direct_only) : n_(topology.rank_count()) {
    std::vector<std::pair<int, int>> pairs;
    for (int from = 0; from < n_; ++from)
      for (int to = 0; to < n_; ++to)
        if (from != to) pairs.emplace_back(from, to);
    routes_ = find_routes(topology, pairs, Routing::Spread, 0);
    for (size_t pair = 0; pair < pairs.size(); ++pair) {
      const auto [from, to] = pairs[pair];
      const auto joins = [&](const Hop& hop) {
        const Link& link = topology.links[at(hop.link)];
        return link.from == topology.ranks[at(from)] && link.to == topology.ranks[at(to)];
      };
      allowed_.push_back(!direct_only || std::ranges::all_of(routes_.of(pair), joins));
    }
  }

  void price(const std::vector<double>& prices, std::vector<double>& cost) override {
    size_t pair = 0;
    for (int from = 0; from < n_; ++from)
      for (int to = 0; to < n_; ++to) {
        double& sum = cost[at(from) * at(n_) + at(to)];
        sum = 0;
        if (from == to) continue;
        for (const Hop& hop : routes_.of(pair)) sum += prices[at(hop.link)] * hop.share;
        if (!allowed_[pair++]) sum += kForbidden;
      }
  }

  void add_use(int from, int to, std::vector<double>& use) const override {
    for (const Hop& hop : routes_.of(pair_of(from, to))) use[at(hop.link)] += hop.share;
  }

  bool allows(int from, int to) const override { return allowed_[pair_of(from, to)]; }

 private:
  static constexpr double kForbidden = 1e15;

  size_t pair_of(int from, int to) const { return at(from) * at(n_ - 1) + at(to) - (to > from ? 1 : 0); }

  int n_;
  RouteTable routes_;
  std::vector<char> allowed_;
};

// Any way through nodes that forward: the cheapest.
class CheapestWays : public Ways {
 public:
  explicit CheapestWays(const Topology& topology)
      : topology_(topology), leaving_(topology, Adjacency::Side::Leaving) {}

  void price(const std::vector<double>& prices, std::vector<double>& cost) override {
    const auto n = static_cast<size_t>(topology_.rank_count());
    arrived_by_.assign(n, {});
    for (size_t from = 0; from < n; ++from) {
      const auto sum = search(topology_.ranks[from], prices, arrived_by_[from]);
      for (size_t to = 0; to < n; ++to) cost[from * n + to] = sum[at(topology_.ranks[to])];
    }
  }

  void add_use(int from, int to, std::vector<double>& use) const override {
    const int start = topology_.ranks[at(from)];
    for (int node = topology_.ranks[at(to)]; node != start;) {
      const int link = arrived_by_[at(from)][at(node)];
      use[at(link)] += 1;
      node = topology_.links[at(link)].from;
    }
  }

 private:
  std::vector<double> search(int start, const std::vector<double>& prices,
                             std::vector<int>& arrived_by) const {
    using Entry = std::pair<double, int>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    std::vector<double> sum(topology_.nodes.size(), std::numeric_limits<double>::infinity());
    arrived_by.assign(topology_.nodes.size(), -1);
    sum[at(start)] = 0;
    queue.emplace(0, start);
    while (!queue.empty()) {
      const auto [so_far, node] = queue.top();
      queue.pop();
      if (so_far > sum[at(node)] || (node != start && !topology_.forwards(node))) continue;
      for (int link : leaving_.of(node)) {
        const int to = topology_.links[at(link)].to;
        if (so_far + prices[at(link)] >= sum[at(to)]) continue;
        sum[at(to)] = so_far + prices[at(link)];
        arrived_by[at(to)] = link;
        queue.emplace(sum[at(to)], to);
      }
    }
    return sum;
  }

  const Topology& topology_;
  const Adjacency leaving_;
  std::vector<std::vector<int>> arrived_by_;  // by rank, by node: the last link of the cheapest way
};

class Packer {
 public:
  Packer(const Topology& topology, const PackingRequest& request)
      : topology_(topology),
        request_(request),
        n_(topology.rank_count()),
        cost_(at(n_) * at(n_)),
        back_cost_(cost_.size()) {
    if (request.free_routes)
      ways_ = std::make_unique<CheapestWays>(topology);
    else
      ways_ = std::make_unique<GivenRoutes>(topology, request.direct_links);
    for (const Link& link : topology.links) fastest_ = std::max(fastest_, link.bandwidth);
    for (const Link& link : topology.links) capacity_.push_back(link.bandwidth / fastest_);
    std::map<std::pair<int, int>, double> balance;  // of the two directions between two nodes
    for (const Link& link : topology.links)
      balance[std::minmax(link.from, link.to)] += link.from < link.to ? link.bandwidth : -link.bandwidth;
    symmetric_ = std::ranges::all_of(balance, [](const auto& entry) { return entry.second == 0; });
  }

  TreePacking pack() {
    PackingProgram program(capacity_);
    double limit = std::numeric_limits<double>::infinity();
    for (int count = 0; count < request_.max_trees; ++count) {
      const std::vector<double> prices = tilted(program);
      ways_->price(prices, cost_);
      Candidate best = cheapest(count, prices);
      if (!best.allowed) break;
      double worth = 0;
      for (size_t link = 0; link < capacity_.size(); ++link) worth += prices[link] * capacity_[link];
      if (best.is_cheapest) limit = std::min(limit, worth / cost_of(best.use, prices));
      const double enough = std::min(limit * (1 - request_.tolerance), request_.enough / fastest_);
      if (program.value() >= enough) break;
      if (cost_of(best.use, program.prices()) >= 1 - 1e-9) {
        if (best.is_cheapest || ++idle_ > n_) break;
        continue;  // another root may gain
      }
      idle_ = 0;
      PackingProgram::Column column;
      for (size_t link = 0; link < best.use.size(); ++link)
        if (best.use[link] > 0) column.emplace_back(static_cast<int>(link), best.use[link]);
      uses_.push_back(column);
      program.add(std::move(column));
      trees_.push_back(std::move(best.tree));
    }
    return collected(program.solution(), limit);
  }

 private:
  struct Candidate {
    WeightedTree tree;
    std::vector<double> use;
    bool is_cheapest;  // of all there are
    bool allowed = true;
  };

  // The program's prices, and a little for every link, so that what costs nothing yet is not wasted.
  std::vector<double> tilted(const PackingProgram& program) const {
    const double extra = 1e-6 * std::max(program.value(), 1e-3) / static_cast<double>(capacity_.size());
    std::vector<double> prices = program.prices();
    for (size_t link = 0; link < prices.size(); ++link)
      prices[link] = std::max(prices[link], 0.0) + extra / capacity_[link];
    return prices;
  }

  Candidate cheapest(int count, const std::vector<double>& prices) {
    switch (request_.kind) {
      case CollectiveKind::Broadcast:
        return along({request_.root, {}, cheapest_arborescence(cost_, n_, request_.root), 0}, true);
      case CollectiveKind::Reduce:
        return along({request_.root, mirrored_arborescence(request_.root), {}, 0}, true);
      default:
        break;
    }
    if (!one_way_trees_) {
      WeightedTree tree{0, {}, {}, 0};
      tree.up = rooted_at_centre(cheapest_tree(cost_, n_, count % n_), tree.root);
      tree.down = tree.up;
      Candidate found = along(std::move(tree), symmetric_);
      // Where links differ by direction, reduction and broadcast may gain by trees of their own.
      if (symmetric_ || cost_of(found.use, prices) < 1 - 1e-6) return found;
      one_way_trees_ = true;
    }
    const int root = count % n_;
    return along({root, mirrored_arborescence(root), cheapest_arborescence(cost_, n_, root), 0}, n_ == 1);
  }

  std::vector<int> mirrored_arborescence(int root) {
    for (size_t from = 0; from < at(n_); ++from)
      for (size_t to = 0; to < at(n_); ++to) back_cost_[to * at(n_) + from] = cost_[from * at(n_) + to];
    return cheapest_arborescence(back_cost_, n_, root);
  }

  Candidate along(WeightedTree tree, bool is_cheapest) const {
    std::vector<double> use(capacity_.size(), 0);
    bool allowed = true;
    const auto add = [&](int from, int to) {
      ways_->add_use(from, to, use);
      allowed = allowed && ways_->allows(from, to);
    };
    for (int rank = 0; rank < n_; ++rank) {
      if (rank == tree.root) continue;
      if (!tree.up.empty()) add(rank, tree.up[at(rank)]);
      if (!tree.down.empty()) add(tree.down[at(rank)], rank);
    }
    return {std::move(tree), std::move(use), is_cheapest, allowed};
  }

  static double cost_of(const std::vector<double>& use, const std::vector<double>& prices) {
    double sum = 0;
    for (size_t link = 0; link < use.size(); ++link) sum += use[link] * prices[link];
    return sum;
  }

  TreePacking collected(const std::vector<double>& weights, double limit) {
    TreePacking packing;
    packing.rate_limit = limit * fastest_;
    std::vector<double> use(capacity_.size(), 0);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] <= 0) continue;
      for (const auto& [link, amount] : uses_[i]) use[at(link)] += weights[i] * amount;
      packing.trees.push_back(std::move(trees_[i]));
      packing.trees.back().weight = weights[i];
    }
    // Rounding, and the program's slight changes of capacities, may have overdrawn some link.
    double most = 0;
    for (size_t link = 0; link < use.size(); ++link) most = std::max(most, use[link] / capacity_[link]);
    for (WeightedTree& tree : packing.trees) {
      tree.weight *= fastest_ / most;
      packing.rate += tree.weight;
    }
    std::ranges::stable_sort(packing.trees, std::greater<>(), &WeightedTree::weight);
    return packing;
  }

  const Topology& topology_;
  const PackingRequest request_;
  const int n_;
  std::unique_ptr<Ways> ways_;
  double fastest_ = 0;
  std::vector<double> capacity_;  // of links, the fastest's being 1
  std::vector<double> cost_, back_cost_;
  std::vector<WeightedTree> trees_;
  std::vector<PackingProgram::Column> uses_;  // of links by each tree
  bool symmetric_ = true;
  bool one_way_trees_ = false;
  int idle_ = 0;
};

}  // namespace

TreePacking pack_trees(const Topology& topology, const PackingRequest& request) {
  if (topology.rank_count() < 2) return {};
  return Packer(topology, request).pack();
}

}  // namespace pycoll
