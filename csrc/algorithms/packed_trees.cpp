#include <algorithm>
#include <cmath>
#include <utility>

#include "algorithms/builder.h"
#include "algorithms/list.h"
#include "algorithms/params.h"
#include "core/error.h"
#include "topology/cuts.h"
#include "topology/tree_packing.h"

namespace pycoll {

namespace {

size_t at(int index) {
  return static_cast<size_t>(index);
}

// On a flat switch stars do best, one around every rank: two hops deep, and all ports are in use all the
// time. A broadcast from one root cannot have them; its stars stand around the other ranks, a hop from the
// root.
std::vector<WeightedTree> stars(CollectiveKind kind, int n, int root) {
  std::vector<WeightedTree> trees;
  for (int centre = 0; centre < n; ++centre) {
    if (is_rooted(kind) && centre == root && n > 1) continue;
    const int top = is_rooted(kind) ? root : centre;
    std::vector<int> parent(static_cast<size_t>(n), centre);
    parent[static_cast<size_t>(centre)] = top;
    parent[static_cast<size_t>(top)] = -1;
    const std::vector<int> none;
    trees.push_back({top, kind == CollectiveKind::Broadcast ? none : parent,
                     kind == CollectiveKind::Reduce ? none : parent, 1});
  }
  return trees;
}

constexpr int kMostRanks = 128;

std::vector<WeightedTree> choose_trees(const BuildRequest& request) {
  if (!request.topology || request.ranks < 2) return stars(request.kind, request.ranks, request.root);
  if (request.ranks > kMostRanks)
    throw Unsupported("packed_trees takes topologies of up to " + std::to_string(kMostRanks) +
                      " ranks, not " + std::to_string(request.ranks) +
                      ": the linear program would take too long; 'hierarchical' takes any number");
  PackingRequest packing;
  packing.kind = request.kind;
  packing.root = request.root;
  packing.tolerance = number_param(request, "tolerance", request.ranks > 64 ? 0.02 : 1e-3, 0, 1);
  if (request.kind == CollectiveKind::AllReduce) {
    const CutGraph graph = make_cut_graph(*request.topology);
    packing.enough = weakest_partition(graph).ratio.value() * graph.unit / 2 * (1 - packing.tolerance);
  }
  // Transfers that share links share them alike, not as the trees would have it; so trees of direct links,
  // which nothing else passes, keep better to their pace, and are worth a little of the rate.
  constexpr double enough = 0.97;
  packing.direct_links = true;
  TreePacking direct = pack_trees(*request.topology, packing);
  if (direct.rate >= enough * packing.enough) return std::move(direct.trees);
  packing.direct_links = false;
  TreePacking all = pack_trees(*request.topology, packing);
  return direct.rate >= enough * all.rate ? std::move(direct.trees) : std::move(all.trees);
}

// How many of the pieces each tree gets: in proportion to its weight, by largest remainders.
std::vector<int> shares(const std::vector<WeightedTree>& trees, int pieces) {
  double sum = 0;
  for (const WeightedTree& tree : trees) sum += tree.weight;
  std::vector<int> count;
  std::vector<std::pair<double, size_t>> remainders;
  int given = 0;
  for (size_t i = 0; i < trees.size(); ++i) {
    const double exact = trees[i].weight / sum * pieces;
    count.push_back(static_cast<int>(std::floor(exact)));
    given += count.back();
    remainders.emplace_back(count.back() - exact, i);
  }
  std::ranges::sort(remainders);
  for (size_t i = 0; given < pieces; ++i, ++given) ++count[remainders[i % remainders.size()].second];
  return count;
}

// The tree of each piece, every tree's pieces spread evenly over all.
std::vector<size_t> interleaved(const std::vector<int>& count) {
  std::vector<std::pair<double, size_t>> places;
  for (size_t tree = 0; tree < count.size(); ++tree)
    for (int i = 0; i < count[tree]; ++i) places.emplace_back((i + 0.5) / count[tree], tree);
  std::ranges::stable_sort(places, {}, [](const auto& place) { return place.first; });
  std::vector<size_t> order;
  for (const auto& place : places) order.push_back(place.second);
  return order;
}

// What a tree's transfers are: child to parent, then parent to child.
template <class Visit>  // visit(from, to, up)
void for_each_transfer(const WeightedTree& tree, Visit visit) {
  for (int rank = 0; rank < static_cast<int>(std::max(tree.up.size(), tree.down.size())); ++rank) {
    if (rank == tree.root) continue;
    if (!tree.up.empty()) visit(rank, tree.up[at(rank)], true);
    if (!tree.down.empty()) visit(tree.down[at(rank)], rank, false);
  }
}

// How many pieces start while one goes from rank to rank, if all pairs of ranks that the trees use are used
// alike: as many as there are pairs for each transfer of a piece.
double pieces_a_hop(const std::vector<WeightedTree>& trees, const std::vector<int>& count, int n) {
  std::vector<char> used(at(n) * at(n), 0);
  double transfers = 0, pieces = 0;
  for (size_t i = 0; i < trees.size(); ++i) {
    if (count[i] == 0) continue;
    for_each_transfer(trees[i], [&](int from, int to, bool) {
      used[at(from) * at(n) + at(to)] = 1;
      transfers += count[i];
    });
    pieces += count[i];
  }
  return std::max(1.0, static_cast<double>(std::ranges::count(used, 1)) * pieces / transfers);
}

// In hops after the piece's start: when each rank of a tree sends up, and when its parent sends down to it.
// Ranks near the root wait for those that are far.
struct TreeTimes {
  std::vector<int> up, down;
  int end = 0;
};

std::vector<int> depths(const std::vector<int>& parent) {
  std::vector<int> depth(parent.size(), 0);
  for (size_t rank = 0; rank < parent.size(); ++rank)
    for (int above = parent[rank]; above >= 0; above = parent[at(above)]) ++depth[rank];
  return depth;
}

TreeTimes times_of(const WeightedTree& tree) {
  TreeTimes times{depths(tree.up), depths(tree.down), 0};
  const int height = times.up.empty() ? 0 : *std::ranges::max_element(times.up);
  for (int& time : times.up) time = height - time;
  for (int& time : times.down) time += height - 1;
  for (int time : times.up) times.end = std::max(times.end, time + 1);
  for (int time : times.down) times.end = std::max(times.end, time + 1);
  return times;
}

// Each piece goes up its tree and comes down it again, right behind the piece before: a pipeline. Pieces end
// in their order, so those with the longest way start first.
Schedule build_packed_trees(const BuildRequest& request) {
  const std::vector<WeightedTree> trees = choose_trees(request);
  const int least = std::max(request.ranks, static_cast<int>(trees.size()));
  const int rounds_of_all = request.topology ? integer_param(request, "depth", 4, 1, 1 << 16) : 1;
  ScheduleBuilder schedule("packed_trees", request, std::min(least * rounds_of_all, 1 << 13),
                           {"tolerance", "depth", "pace"});
  const int n = schedule.ranks();
  if (n == 1) return schedule.finish();
  const std::vector<int> count = shares(trees, schedule.pieces());
  const std::vector<size_t> order = interleaved(count);
  const double hop = pieces_a_hop(trees, count, n) * number_param(request, "pace", 8, 1e-3, 1e3);
  std::vector<TreeTimes> times;
  int longest = 0;
  for (const WeightedTree& tree : trees) {
    times.push_back(times_of(tree));
    longest = std::max(longest, times.back().end);
  }
  for (int piece = 0; piece < schedule.pieces(); ++piece) {
    const WeightedTree& tree = trees[order[at(piece)]];
    const TreeTimes& time = times[order[at(piece)]];
    const int start = static_cast<int>(piece / hop) + longest - time.end;
    for_each_transfer(tree, [&](int from, int to, bool up) {
      if (up)
        schedule.reduce(start + time.up[at(from)], from, to, {piece, piece + 1});
      else
        schedule.copy(start + time.down[at(to)], from, to, {piece, piece + 1});
    });
  }
  return schedule.finish();
}

}  // namespace

Algorithm packed_trees() {
  return {
      .name = "packed_trees",
      .description =
          "pipelined spanning trees, as many as fill all links of the machine: the least time for large "
          "buffers on any topology; stars on a flat switch",
      .source =
          "Zhao et al., ForestColl: Throughput-optimal collective communications on heterogeneous network "
          "fabrics, arXiv 2402.06787; Tutte and Nash-Williams (1961)",
      .collectives = {CollectiveKind::AllReduce, CollectiveKind::Broadcast, CollectiveKind::Reduce},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_packed_trees,
  };
}

}  // namespace pycoll
