#include "topology/cuts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace pycoll {

namespace {

size_t at(int index) {
  return static_cast<size_t>(index);
}

// Whole capacities for these bandwidths, and the bytes/s that one stands for. Sums of all capacities, times
// the number of terminals, must not overflow.
double make_whole(const std::vector<double>& bandwidths, int terminals, std::vector<Amount>& capacities) {
  const double sum = std::accumulate(bandwidths.begin(), bandwidths.end(), 0.0);
  const double room = 0x1p58 / (terminals + 1.0);
  double unit = 1;
  const bool whole = std::ranges::all_of(
      bandwidths, [](double bandwidth) { return bandwidth < 0x1p52 && bandwidth == std::floor(bandwidth); });
  if (whole) {
    Amount divisor = 0;
    for (double bandwidth : bandwidths) divisor = std::gcd(divisor, static_cast<Amount>(bandwidth));
    if (divisor > 0) unit = static_cast<double>(divisor);
  }
  if (!whole || sum / unit > room) unit = sum / room;
  for (double bandwidth : bandwidths)
    capacities.push_back(static_cast<Amount>(std::ceil(bandwidth / unit * (1 - 0x1p-52))));
  return unit;
}

void add_arcs(FlowNetwork& network, const CutGraph& graph, Amount scale) {
  for (const CutGraph::Arc& arc : graph.arcs) network.add_arc(arc.from, arc.to, scale * arc.capacity);
}

// The graph's network between a source and a sink of its own, each with an arc to every terminal.
class TerminalNetwork {
 public:
  TerminalNetwork(const CutGraph& graph, Amount scale)
      : graph_(graph), source_(graph.nodes), sink_(graph.nodes + 1), network_(graph.nodes + 2) {
    add_arcs(network_, graph, scale);
    for (int node : graph.terminals) {
      feed_.push_back(network_.add_arc(source_, node, 0));
      drain_.push_back(network_.add_arc(node, sink_, 0));
    }
  }

  void feed(int terminal, Amount capacity) { network_.set_capacity(feed_[at(terminal)], capacity); }
  void drain(int terminal, Amount capacity) { network_.set_capacity(drain_[at(terminal)], capacity); }
  Amount max_flow() { return network_.max_flow(source_, sink_); }
  bool inside(int terminal) const { return network_.on_sink_side(graph_.terminals[at(terminal)]); }
  std::vector<int> inside() const {
    std::vector<int> found;
    for (int terminal = 0; terminal < static_cast<int>(graph_.terminals.size()); ++terminal)
      if (inside(terminal)) found.push_back(terminal);
    return found;
  }
  std::vector<char> sink_side() const {
    std::vector<char> side(at(graph_.nodes));
    for (int node = 0; node < graph_.nodes; ++node) side[at(node)] = network_.on_sink_side(node);
    return side;
  }

 private:
  const CutGraph& graph_;
  int source_, sink_;
  FlowNetwork network_;
  std::vector<int> feed_, drain_;
};

class DisjointSets {
 public:
  explicit DisjointSets(int count) : parent_(at(count)) { std::iota(parent_.begin(), parent_.end(), 0); }
  int find(int item) {
    while (parent_[at(item)] != item) item = parent_[at(item)] = parent_[at(parent_[at(item)])];
    return item;
  }
  void unite(int a, int b) { parent_[at(find(a))] = find(b); }
  std::vector<std::vector<int>> sets() {
    std::map<int, std::vector<int>> by_top;
    for (int item = 0; item < static_cast<int>(parent_.size()); ++item) by_top[find(item)].push_back(item);
    std::vector<std::vector<int>> all;
    for (auto& entry : by_top) all.push_back(std::move(entry.second));
    return all;
  }

 private:
  std::vector<int> parent_;
};

Ratio reduced(Amount amount, Amount parts) {
  const Amount divisor = std::gcd(amount, parts);
  return {amount / divisor, parts / divisor};
}

// ---- partitions

// The partition that minimises the sum of f(part) - mu over its parts, by Dilworth truncation: give the
// terminals, one by one, the greatest y that keeps y(X) <= f(X) - mu for every X; sets that hold it with
// equality and meet unite. (Dunstan 1976; Cunningham, Optimal attack and reinforcement of a network, JACM 32,
// 1985; Frank, Connections in Combinatorial Optimization, 2011, section 14.) One maximum flow a terminal.
std::vector<std::vector<int>> truncate(const CutGraph& graph, Ratio mu, Amount& total_of_f) {
  const int n = static_cast<int>(graph.terminals.size());
  TerminalNetwork network(graph, mu.parts);
  for (int terminal = 0; terminal < n; ++terminal) network.feed(terminal, FlowNetwork::kUnlimited);
  DisjointSets tight(n);
  Amount positive = 0, total = 0;
  for (int i = 0; i < n; ++i) {
    network.feed(i, 0);
    network.drain(i, FlowNetwork::kUnlimited);
    const Amount y = network.max_flow() - positive - mu.amount;
    for (int j = 0; j < i; ++j)
      if (network.inside(j)) tight.unite(j, i);
    network.feed(i, std::max<Amount>(-y, 0));
    network.drain(i, std::max<Amount>(y, 0));
    positive += std::max<Amount>(y, 0);
    total += y;
  }
  auto parts = tight.sets();
  total_of_f = (total + static_cast<Amount>(parts.size()) * mu.amount) / mu.parts;
  return parts;
}

CutGraph induced(const CutGraph& graph, const std::vector<int>& terminals, const std::vector<char>& kept) {
  CutGraph part;
  part.nodes = graph.nodes;
  part.unit = graph.unit;
  for (int terminal : terminals) part.terminals.push_back(graph.terminals[at(terminal)]);
  for (const CutGraph::Arc& arc : graph.arcs)
    if (kept[at(arc.from)] && kept[at(arc.to)]) part.arcs.push_back(arc);
  // Nodes that are left out would cost time in every search.
  std::vector<int> renamed(at(graph.nodes), -1);
  int next = 0;
  for (int node = 0; node < graph.nodes; ++node)
    if (kept[at(node)]) renamed[at(node)] = next++;
  for (CutGraph::Arc& arc : part.arcs) arc = {renamed[at(arc.from)], renamed[at(arc.to)], arc.capacity};
  for (int& node : part.terminals) node = renamed[at(node)];
  part.nodes = next;
  return part;
}

// Each group becomes one terminal; what joined its members, and the switches in `dropped`, vanish.
CutGraph contracted(const CutGraph& graph, const std::vector<std::vector<int>>& groups,
                    const std::vector<char>& dropped) {
  CutGraph small;
  small.unit = graph.unit;
  std::vector<int> renamed(at(graph.nodes), -1);
  for (const auto& group : groups) {
    for (int terminal : group) renamed[at(graph.terminals[at(terminal)])] = small.nodes;
    small.terminals.push_back(small.nodes++);
  }
  for (int node = 0; node < graph.nodes; ++node)
    if (renamed[at(node)] < 0 && !dropped[at(node)]) renamed[at(node)] = small.nodes++;
  std::map<std::pair<int, int>, Amount> sums;
  for (const CutGraph::Arc& arc : graph.arcs) {
    const int from = renamed[at(arc.from)], to = renamed[at(arc.to)];
    if (from >= 0 && to >= 0 && from != to) sums[{from, to}] += arc.capacity;
  }
  for (const auto& [ends, capacity] : sums) small.arcs.push_back({ends.first, ends.second, capacity});
  return small;
}

// Terminals that have switches of their own, through which nobody else can pass: a host's GPUs on its NVLink
// switches. The switches, and the terminals of them all.
struct Cluster {
  std::vector<int> terminals;
  std::vector<int> switches;  // nodes
};

std::vector<Cluster> closed_clusters(const CutGraph& graph) {
  std::vector<int> terminal_at(at(graph.nodes), -1);
  for (size_t i = 0; i < graph.terminals.size(); ++i)
    terminal_at[at(graph.terminals[i])] = static_cast<int>(i);
  DisjointSets joined(graph.nodes);
  for (const CutGraph::Arc& arc : graph.arcs)
    if (terminal_at[at(arc.from)] < 0 && terminal_at[at(arc.to)] < 0) joined.unite(arc.from, arc.to);
  std::map<int, std::vector<int>> around;  // top switch -> terminals
  for (const CutGraph::Arc& arc : graph.arcs) {
    const int from = terminal_at[at(arc.from)], to = terminal_at[at(arc.to)];
    if (from >= 0 && to < 0) around[joined.find(arc.to)].push_back(from);
    if (from < 0 && to >= 0) around[joined.find(arc.from)].push_back(to);
  }
  std::map<std::vector<int>, std::vector<int>> switches_of;  // terminals -> switches
  std::map<int, std::vector<int>> members;
  for (int node = 0; node < graph.nodes; ++node)
    if (terminal_at[at(node)] < 0) members[joined.find(node)].push_back(node);
  for (auto& [top, terminals] : around) {
    std::ranges::sort(terminals);
    terminals.erase(std::unique(terminals.begin(), terminals.end()), terminals.end());
    auto& list = switches_of[terminals];
    list.insert(list.end(), members[top].begin(), members[top].end());
  }
  std::vector<Cluster> clusters;
  for (auto& [terminals, switches] : switches_of)
    if (terminals.size() >= 2 && terminals.size() < graph.terminals.size())
      clusters.push_back({terminals, std::move(switches)});
  std::ranges::stable_sort(clusters, {}, [](const Cluster& cluster) { return cluster.terminals.size(); });
  return clusters;
}

// Contracts each closed cluster whose own weakest partition is at least mu: no partition of a smaller ratio
// splits it. Proof: let P split such a cluster X, whose links form H, in k >= 2 parts. Flows in H and in the
// rest G - H add, so the parts that meet X have sum f >= sum f_H + sum f_(G-H) >= (k-1) mu + f(their union),
// since H is of no use to the union, which holds all of X, and f_(G-H) is subadditive. So uniting the k parts
// lowers the sum of f - mu, or keeps it.
bool contract_clusters(CutGraph& graph, std::vector<std::vector<int>>& members, Ratio mu) {
  std::vector<char> taken(graph.terminals.size(), 0), dropped(at(graph.nodes), 0);
  DisjointSets groups(static_cast<int>(graph.terminals.size()));
  bool found = false;
  for (const Cluster& cluster : closed_clusters(graph)) {
    if (std::ranges::any_of(cluster.terminals, [&](int terminal) { return taken[at(terminal)]; })) continue;
    std::vector<char> kept(at(graph.nodes), 0);
    for (int terminal : cluster.terminals) kept[at(graph.terminals[at(terminal)])] = 1;
    for (int node : cluster.switches) kept[at(node)] = 1;
    if (weakest_partition(induced(graph, cluster.terminals, kept)).ratio < mu) continue;
    for (int terminal : cluster.terminals) {
      taken[at(terminal)] = 1;
      groups.unite(terminal, cluster.terminals.front());
    }
    for (int node : cluster.switches) dropped[at(node)] = 1;
    found = true;
  }
  if (!found) return false;
  const auto sets = groups.sets();
  std::vector<std::vector<int>> merged;
  for (const auto& set : sets) {
    merged.emplace_back();
    for (int terminal : set)
      merged.back().insert(merged.back().end(), members[at(terminal)].begin(), members[at(terminal)].end());
  }
  graph = contracted(graph, sets, dropped);
  members = std::move(merged);
  return true;
}

Ratio ratio_of_single_terminals(const CutGraph& graph) {
  Amount sum = 0;
  const int n = static_cast<int>(graph.terminals.size());
  for (int terminal = 0; terminal < n; ++terminal) sum += least_cut_into(graph, {terminal}).capacity;
  return reduced(sum, n - 1);
}

// ---- sets

WeakestSet consider(const WeakestSet& best, WeakestSet other) {
  return best.inside.empty() || other.ratio < best.ratio ? std::move(other) : best;
}

}  // namespace

CutGraph CutGraph::reversed() const {
  CutGraph graph = *this;
  for (Arc& arc : graph.arcs) std::swap(arc.from, arc.to);
  return graph;
}

CutGraph make_cut_graph(const Topology& topology) {
  CutGraph graph;
  graph.nodes = static_cast<int>(topology.nodes.size());
  graph.terminals = topology.ranks;
  std::vector<char> usable(at(graph.nodes), 0);
  for (int node = 0; node < graph.nodes; ++node) usable[at(node)] = topology.forwards(node);
  for (int node : topology.ranks) usable[at(node)] = 1;
  std::vector<double> bandwidths;
  std::vector<const Link*> links;
  for (const Link& link : topology.links) {
    if (!usable[at(link.from)] || !usable[at(link.to)]) continue;
    links.push_back(&link);
    bandwidths.push_back(link.bandwidth);
  }
  std::vector<Amount> capacities;
  graph.unit = make_whole(bandwidths, topology.rank_count(), capacities);
  std::map<std::pair<int, int>, Amount> sums;
  for (size_t i = 0; i < links.size(); ++i) sums[{links[i]->from, links[i]->to}] += capacities[i];
  for (const auto& [ends, capacity] : sums) graph.arcs.push_back({ends.first, ends.second, capacity});
  return graph;
}

Cut least_cut_into(const CutGraph& graph, const std::vector<int>& inside) {
  TerminalNetwork network(graph, 1);
  for (int terminal = 0; terminal < static_cast<int>(graph.terminals.size()); ++terminal)
    network.feed(terminal, FlowNetwork::kUnlimited);
  for (int terminal : inside) {
    network.feed(terminal, 0);
    network.drain(terminal, FlowNetwork::kUnlimited);
  }
  const Amount capacity = network.max_flow();
  return {capacity, inside, network.sink_side()};
}

// Dinkelbach's method: the least ratio is the greatest mu at which no partition has sum (f - mu) < -mu, the
// value of the trivial one; a partition that has gives the next, smaller mu.
Partition weakest_partition(const CutGraph& whole) {
  CutGraph graph = whole;
  std::vector<std::vector<int>> members(graph.terminals.size());
  for (size_t i = 0; i < members.size(); ++i) members[i] = {static_cast<int>(i)};
  Partition best{ratio_of_single_terminals(graph), members};
  while (true) {
    while (contract_clusters(graph, members, best.ratio)) {
    }
    if (members.size() == 1) return best;
    Amount sum = 0;
    const auto parts = truncate(graph, best.ratio, sum);
    const auto m = static_cast<Amount>(parts.size());
    if (m == 1) return best;
    const Ratio ratio = reduced(sum, m - 1);
    if (!(ratio < best.ratio)) return best;
    best = {ratio, {}};
    for (const auto& part : parts) {
      best.parts.emplace_back();
      for (int terminal : part)
        best.parts.back().insert(best.parts.back().end(), members[at(terminal)].begin(),
                                 members[at(terminal)].end());
      std::ranges::sort(best.parts.back());
    }
    std::ranges::sort(best.parts);
  }
}

// Newton's method over ForestColl's cut (Zhao et al., arXiv 2402.06787, theorem 1): theta is attained unless,
// for some v, less than n * theta can flow to v from a source that has theta for every terminal.
WeakestSet weakest_by_outside(const CutGraph& graph) {
  const int n = static_cast<int>(graph.terminals.size());
  WeakestSet best;
  for (int v = 0; v < n; ++v)
    best = consider(best, {reduced(least_cut_into(graph, {v}).capacity, n - 1), {v}});
  int fine = 0;  // terminals that could not improve on the present ratio
  for (int v = 0; fine < n; v = (v + 1) % n) {
    TerminalNetwork network(graph, best.ratio.parts);
    for (int terminal = 0; terminal < n; ++terminal) network.feed(terminal, best.ratio.amount);
    network.drain(v, FlowNetwork::kUnlimited);
    ++fine;
    if (network.max_flow() >= n * best.ratio.amount) continue;
    auto inside = network.inside();
    const Amount capacity = least_cut_into(graph, inside).capacity;
    best = {reduced(capacity, n - static_cast<Amount>(inside.size())), std::move(inside)};
    fine = 0;
  }
  return best;
}

WeakestSet weakest_by_inside(const CutGraph& graph, int root) {
  const int n = static_cast<int>(graph.terminals.size());
  std::vector<int> inside;
  for (int terminal = 0; terminal < n; ++terminal)
    if (terminal != root) inside.push_back(terminal);
  while (true) {
    const Amount capacity = least_cut_into(graph, inside).capacity;
    const WeakestSet best{reduced(capacity, static_cast<Amount>(inside.size())), inside};
    TerminalNetwork network(graph, best.ratio.parts);
    network.feed(root, FlowNetwork::kUnlimited);
    for (int terminal = 0; terminal < n; ++terminal)
      if (terminal != root) network.drain(terminal, best.ratio.amount);
    if (network.max_flow() >= (n - 1) * best.ratio.amount) return best;
    inside = network.inside();
  }
}

WeakestSet weakest_from(const CutGraph& graph, int root) {
  WeakestSet best;
  TerminalNetwork network(graph, 1);
  network.feed(root, FlowNetwork::kUnlimited);
  for (int v = 0; v < static_cast<int>(graph.terminals.size()); ++v) {
    if (v == root) continue;
    network.drain(v, FlowNetwork::kUnlimited);
    const Amount capacity = network.max_flow();
    best = consider(best, {{capacity, 1}, network.inside()});
    network.drain(v, 0);
  }
  return best;
}

WeakestSet weakest(const CutGraph& graph) {
  WeakestSet into = weakest_from(graph, 0), out = weakest_from(graph.reversed(), 0);
  if (!(out.ratio < into.ratio)) return into;
  std::vector<char> left(graph.terminals.size(), 0);
  for (int terminal : out.inside) left[at(terminal)] = 1;
  WeakestSet rest{out.ratio, {}};
  for (int terminal = 0; terminal < static_cast<int>(left.size()); ++terminal)
    if (!left[at(terminal)]) rest.inside.push_back(terminal);
  return rest;
}

}  // namespace pycoll
